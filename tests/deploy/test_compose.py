"""The compose file: everything that it names exists, and all its settings are read."""

import re
from pathlib import Path
from typing import Any

import yaml

from tests.conftest import AGORA
from tests.test_container import FINAL

DEPLOY = Path(__file__).parents[2] / "deploy"
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]
OURS = ("server-1", "server-2", "worker")


def test_the_balancer_knows_the_servers_by_their_names() -> None:
    servers = re.findall(r"^\s*server (\S+):8080", (DEPLOY / "nginx.conf").read_text(), re.MULTILINE)
    assert servers == [name for name in SERVICES if name.startswith("server-")]
    for kind in ("ipv4_address", "mac_address"):
        assert len({SERVICES[name]["networks"]["front"][kind] for name in servers}) == len(servers)


def test_what_is_set_is_read_by_the_configuration() -> None:
    read = set(re.findall(r"\$\{(\w+):-", AGORA.read_text())) | {"TURNKEEPER_CONFIG"}
    for name in OURS:
        assert SERVICES[name]["environment"].keys() <= read
    assert SERVICES["worker"]["environment"] == SERVICES["server-1"]["environment"]
    (default,) = re.findall(r":-(.*)}", COMPOSE["x-environment"]["TURNKEEPER_CONFIG"])
    assert default == FINAL.environment["TURNKEEPER_CONFIG"]


def test_no_secret_has_a_default_and_every_one_that_is_missing_says_what_to_do() -> None:
    text = (DEPLOY / "compose.yaml").read_text()
    for name in ("TURNKEEPER_KEYS", "POSTGRES_PASSWORD"):
        assert re.search(rf"\$\{{{name}:\?\w", text)
        assert not re.search(rf"\$\{{{name}:?-", text)


def test_what_is_mounted_exists_or_is_made_by_the_words_at_the_top() -> None:
    text = (DEPLOY / "compose.yaml").read_text()
    for source in re.findall(r"- (\./[^:]+):", text):
        assert (DEPLOY / source).exists() or f"deploy/{source.removeprefix('./')}/" in text.partition(
            "services:"
        )[0]


def test_servers_are_closed_up_and_have_the_time_that_their_end_takes() -> None:
    for name in OURS:
        service = SERVICES[name]
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert int(service["stop_grace_period"].removesuffix("s")) > 2 + 6 + 3
    published = [name for name, service in SERVICES.items() if "ports" in service]
    assert published == ["nginx"]
