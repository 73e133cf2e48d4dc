"""What forgetting leaves of an id: nothing that can be read, in no file and in no log."""

import os
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests import preloaded
from tests.e2e.conftest import Address
from tests.peers.stored_bytes import stored_bytes
from tests.serving_process import LISTEN, ServingProcess, at_rest
from tests.waiting import until

CONFIG = f"""
{LISTEN}
memory: {{sessions: "${{MEMORY_URL}}", archive: {{url: "${{ARCHIVE}}"}}, deadline: 5s}}
traces: {{keep: 10}}
upstreams: {{main: {{base_url: "practice:"}}}}
pipelines: {{default: {{upstreams: [main], request: [restore_history, inject_facts, recall]}}}}
"""
WHO = "ursula-4711"
OTHER = "benedict-0815"
USER = f"/v1/memory/users/{WHO}"
SESSION = "/v1/memory/sessions/the-first-call"


@pytest.fixture(params=["sqlite", "redis", "postgresql"])
def places(request: pytest.FixtureRequest, address: Address, tmp_path: Path) -> dict[str, str]:
    """The sessions and the archive, in one place where that is SQL."""
    url = address(request.param)
    return {"MEMORY_URL": url, "ARCHIVE": url if "sql" in url else f"sqlite:{tmp_path / 'archive.db'}"}


@pytest.fixture
def server(places: dict[str, str], tmp_path: Path) -> Iterator[ServingProcess]:
    with ServingProcess(tmp_path, CONFIG, **places) as serving:
        yield serving


def archive_turn(server: ServingProcess, text: str, session: str, user: str, **message: Any) -> None:
    """A turn that is written, and archived."""
    body = {"model": "m", "messages": [{"role": "user", "content": text, **message}]}
    headers = {"X-Session-Id": session, "X-User-Id": user}
    assert server.client.post("/v1/chat/completions", json=body, headers=headers).status_code == 200
    assert until(lambda: at_rest(server.client))
    whose = message.get("metadata", {}).get("user", user)
    assert until(lambda: text in archived(server, whose), 20)


def stop(server: ServingProcess) -> None:
    server.client.close()
    server.stop()


def archived(server: ServingProcess, user: str = WHO) -> list[str]:
    turns = server.client.get(f"/v1/memory/users/{user}/export").json()["turns"]
    return [turn["message"]["content"] for turn in turns]


def remember(server: ServingProcess) -> dict[str, Any]:
    """Her own call, her words in a call of his, and a fact; her call as it is exported."""
    archive_turn(server, "My dog is called Rex.", "the-first-call", WHO)
    archive_turn(server, "Mine is called Max.", "a-shared-call", OTHER, metadata={"user": OTHER})
    archive_turn(server, "And mine Rex.", "a-shared-call", OTHER, metadata={"user": WHO})
    assert server.client.post(f"{USER}/facts", json={"text": "Has a dog."}).status_code == 201
    exported: dict[str, Any] = server.client.get(SESSION).json()
    return exported


def bring_back(server: ServingProcess, exported: dict[str, Any]) -> None:
    """What was said before is written once more, and so is something new: the archive takes that alone."""
    body = {key: exported[key] for key in ("contents", "turnkeeper")}
    assert server.client.put(SESSION, json=body).status_code == 200
    archive_turn(server, "I am back.", "a-new-call", WHO)
    assert until(lambda: "I am back." in archived(server))
    assert "My dog is called Rex." not in archived(server)


def test_no_file_and_no_log_names_who_is_forgotten(server: ServingProcess, places: dict[str, str]) -> None:
    exported = remember(server)
    assert WHO.encode() in stored_bytes(*places.values())
    assert server.client.delete(USER).status_code == 204
    assert WHO.encode() not in stored_bytes(*places.values())
    assert OTHER.encode() in stored_bytes(*places.values())
    stop(server)
    assert WHO.encode() not in stored_bytes(*places.values())
    assert WHO not in server.log
    server.start()
    bring_back(server, exported)


def test_a_terminal_leaves_as_little(server: ServingProcess, places: dict[str, str]) -> None:
    exported = remember(server)
    environ = {**os.environ, **places, "PORT": str(server.port)}
    done = preloaded.run("forget", WHO, "--config", str(server.path), folder=server.path.parent, env=environ)
    assert done.returncode == 0, done.stderr
    assert WHO not in done.stdout + done.stderr
    assert WHO.encode() not in stored_bytes(*places.values())
    bring_back(server, exported)
    assert WHO not in server.log


def test_the_log_tells_users_apart_and_names_none(server: ServingProcess) -> None:
    for session, user in (("one", WHO), ("two", OTHER), ("three", WHO)):
        archive_turn(server, "Hello?", session, user)
    server.stop()
    first, second, third = re.findall(r" user=(\S+)", server.log)
    assert first == third != second
    assert not {WHO, OTHER} & {first, second}
    assert " session=one " in server.log


def test_names_that_an_older_version_left_in_tombstones_are_obeyed_and_leave(
    address: Address, tmp_path: Path
) -> None:
    url = address("sqlite")
    path = url.removeprefix("sqlite:")
    with ServingProcess(tmp_path, CONFIG, MEMORY_URL=url, ARCHIVE=url) as server:
        exported = remember(server)
        assert server.client.delete(USER).status_code == 204
        assert server.client.post("/v1/memory/users/somebody/facts", json={"text": "Lives."}).is_success
        stop(server)
        with closing(sqlite3.connect(path)) as connection, connection:
            named = "UPDATE turnkeeper_tombstones SET name = ? WHERE kind = 0"
            assert connection.execute(named, (WHO.encode(),)).rowcount == 1
        assert WHO.encode() in stored_bytes(url)
        server.start()
        assert until(lambda: WHO.encode() not in stored_bytes(url), 30)
        bring_back(server, exported)
