"""What a stolen database file reveals, and what a wrong key does."""

import base64
import sys
from pathlib import Path
from typing import Any

import pytest

from proxy.errors import ConfigError
from proxy.memory.stores.codec import Plain, codec_from_keys
from proxy.settings.load import load
from tests.proxy_server import ProxyServer, Serve

CONFIG = """
memory: {sessions: "${MEMORY_URL}", encryption: ["${NEW_KEY:-}", "${OLD_KEY:-}"]}
upstreams: {main: {base_url: "practice:"}}
pipelines: {default: {upstreams: [main], request: []}}
"""
OLD, NEW = (base64.urlsafe_b64encode(letter * 32).decode() for letter in (b"o", b"n"))
PATH = "/v1/memory/sessions/s1"
SAID = [{"role": "user", "content": "My word is scarecrow.", "turn_id": 0}]


def kept(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.glob("sessions.db*"))


def remember(proxy: ProxyServer) -> None:
    assert proxy.client.put(PATH, json={"contents": SAID}).status_code == 200


@pytest.mark.parametrize(("key", "readable"), [("", True), (OLD, False)])
def test_the_file_holds_no_spoken_word_when_it_is_encrypted(
    serve: Serve, tmp_path: Path, key: str, readable: bool
) -> None:
    proxy = serve(CONFIG, MEMORY_URL=f"sqlite:{tmp_path / 'sessions.db'}", NEW_KEY=key)
    remember(proxy)
    assert proxy.client.get(PATH).json()["contents"] == SAID
    assert (b"scarecrow" in kept(tmp_path)) is readable


def test_a_key_can_be_changed_but_not_lost(serve: Serve, tmp_path: Path) -> None:
    url: dict[str, Any] = {"MEMORY_URL": f"sqlite:{tmp_path / 'sessions.db'}"}
    remember(serve(CONFIG, **url, NEW_KEY=OLD))
    assert serve(CONFIG, **url, NEW_KEY=NEW, OLD_KEY=OLD).client.get(PATH).json()["contents"] == SAID
    for key in (NEW, ""):
        client = serve(CONFIG, **url, NEW_KEY=key).client
        assert client.get(PATH).status_code == 404
        (lost,) = client.get("/v1/memory/sessions").json()["data"]
        assert "s1" not in lost["id"]
        assert client.get(f"/v1/memory/sessions/{lost['id']}").status_code == 503


@pytest.mark.parametrize("key", ["short-secret", base64.b64encode(b"short").decode(), "ü"])
def test_a_key_that_is_none_is_refused_with_advice_and_not_repeated(tmp_path: Path, key: str) -> None:
    path = tmp_path / "turnkeeper.yaml"
    path.write_text(CONFIG)
    with pytest.raises(ConfigError) as error:
        load(path, {"MEMORY_URL": "memory:", "NEW_KEY": key})
    assert "memory.encryption" in error.value.message
    assert "openssl rand -base64 32" in error.value.message
    assert key not in error.value.message


def test_without_the_extra_the_fault_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("proxy.memory.stores.encryption")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "cryptography.exceptions", None)
    assert isinstance(codec_from_keys(["", " "]), Plain)
    with pytest.raises(ValueError, match=r"turnkeeper\[encryption\]"):
        codec_from_keys([OLD])
