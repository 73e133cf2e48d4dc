"""Encryption keys that are changed on one running server after another, in one step instead of two."""

import base64
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.e2e.conftest import Address
from tests.serving_process import LISTEN, ServingProcess, at_rest
from tests.waiting import until

CONFIG = f"""{LISTEN}
memory:
  sessions: "${{MEMORY_URL}}"
  archive: {{url: "${{ARCHIVE_URL}}"}}
  encryption: ["${{NEW_KEY:-}}", "${{OLD_KEY:-}}"]
upstreams: {{main: {{base_url: "practice:"}}}}
pipelines: {{default: {{upstreams: [main], request: [recall]}}}}
"""
OLD, NEW = (base64.urlsafe_b64encode(letter * 32).decode() for letter in (b"o", b"n"))
KEYS = {"old": {"OLD_KEY": OLD}, "both": {"NEW_KEY": NEW, "OLD_KEY": OLD}, "new": {"NEW_KEY": NEW}}
STEPS = [("old", "old"), ("both", "old"), ("both", "both"), ("new", "both"), ("new", "new")]
SOON = 3.0
"""Seconds; a server that waits for the other to leave its secrets alone takes longer."""


def users(server: ServingProcess) -> set[str]:
    return {one["id"] for one in server.client.get("/v1/memory/users").json()["data"]}


def found(server: ServingProcess, user: str) -> list[str]:
    got = server.client.post("/v1/memory/search", json={"user": user, "query": "Where is the scarecrow?"})
    return [one["text"] for one in got.json()["results"]]


def say(server: ServingProcess, user: str) -> None:
    text = f"The scarecrow of {user} is in the barn."
    assert server.chat(text, f"call of {user}", user=user, stream=True).status_code == 200
    assert until(lambda: at_rest(server.client))
    assert until(lambda: text in found(server, user)), user


def forget(server: ServingProcess, user: str, servers: list[ServingProcess]) -> None:
    begun = time.monotonic()
    # 409 where sessions of the other server cannot be read.
    assert server.client.delete(f"/v1/memory/users/{user}").status_code in {204, 409}
    assert time.monotonic() - begun < SOON
    for each in servers:
        assert until(lambda each=each: user not in users(each)), users(each)
        assert found(each, user) == []


@pytest.mark.timeout(180)
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_words_are_found_users_listed_and_forgotten_at_every_step(
    address: Address, tmp_path: Path, kind: str
) -> None:
    environ = dict.fromkeys(("MEMORY_URL", "ARCHIVE_URL"), address(kind))
    running: list[tuple[str, ServingProcess]] = []
    with ExitStack() as started:
        for step, names in enumerate(STEPS):
            for place, name in enumerate(names):
                if running[place:] and running[place][0] == name:
                    continue
                for _, before in running[place : place + 1]:
                    before.__exit__()
                folder = tmp_path / f"{step}-{place}"
                folder.mkdir()
                server = started.enter_context(ServingProcess(folder, CONFIG, **environ, **KEYS[name]))
                running[place : place + 1] = [(name, server)]
            servers = [server for _, server in running]
            speakers = [f"{server}-{step}" for server in ("first", "second")]
            for server, user in zip(servers, speakers, strict=True):
                say(server, user)
            assert until(lambda: all(users(server) >= {*speakers} for server in servers)), names  # noqa: B023
            for server, user in zip(servers, speakers, strict=True):
                forget(server, user, servers)
