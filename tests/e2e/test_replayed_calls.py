"""A recorded call, replayed on the command line through another configuration."""

import json
import os
import sqlite3
import subprocess
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests import preloaded
from tests.peers.fake_upstream import FakeUpstream, completion
from tests.peers.fake_upstream import answer as spoken
from tests.proxy_server import ProxyServer, Serve
from tests.waiting import awaited

PRESENT = """
memory: {sessions: "${MEMORY_URL}", archive: {url: "${ARCHIVE_URL:-}"}, facts: {upstream: main}, work: false}
upstreams: {main: {base_url: "${UPSTREAM_BASE_URL:-practice:}"}}
pipelines:
  default:
    upstreams: [main]
    request: [restore_history, inject_summaries, inject_facts]
"""
OTHER = """
memory: {sessions: "memory:"}
upstreams: {main: {base_url: "practice:"}}
pipelines:
  default:
    upstreams: [main]
    request:
      - drop_messages: {sources: [silence]}
      - restore_interrupted
      - user_context: {template: "{user}: "}
      - set_parameters: {set: {temperature: 0.3}}
    # What must hold.
    tests:
      - name: mine
        messages: ["user: costs $$5"]
        expect: ["user: costs $$5"]

# The end.
"""
IDS = {"X-Session-Id": "room-1", "X-User-Id": "ann"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "present.yaml").write_text(PRESENT)
    (tmp_path / "other.yaml").write_text(OTHER)
    return tmp_path


@pytest.fixture
def turnkeeper(folder: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        own = {"MEMORY_URL": f"sqlite:{folder / 'm.db'}", "TURNKEEPER_CONFIG": "present.yaml"}
        return preloaded.run(*arguments, folder=folder, env={**os.environ, **own})

    return run


@pytest.fixture
def recorded(serve: Serve, upstream: FakeUpstream, folder: Path) -> ProxyServer:
    """A server on which Ann has talked: her second answer was cut short."""
    proxy = serve(PRESENT, MEMORY_URL=f"sqlite:{folder / 'm.db'}")
    talk: list[dict[str, object]] = []
    turns: list[tuple[str, dict[str, object]]] = [
        ("Hello", {"content": "Good day."}),
        ("A joke for $5, ${PLEASE}", {"content": "Why did", "interrupted": True, "original": "Why did it?"}),
        ("No, a story", {"content": "Once."}),
    ]
    for number, (words, answer) in enumerate(turns, 1):
        at = {"turn_id": number, "timestamp": 1_790_000_000 + 10 * number}
        talk.append({"role": "user", "content": words, **at, "metadata": {"user": "ann"}})
        upstream.says(*spoken(completion(str(answer.get("original", answer["content"])))))
        assert proxy.chat(messages=talk, headers=IDS).status_code == 200
        marks = {name: value for name, value in answer.items() if name != "content"}
        talk.append({"role": "assistant", "content": answer["content"], **at, "metadata": marks})
    fact = {"text": "Ann is a vet.", "category": "core"}
    assert proxy.client.post("/v1/memory/users/ann/facts", json=fact).status_code == 201
    awaited(lambda: len(proxy.client.get("/v1/memory/sessions/room-1").json()["contents"]) == 6)
    return proxy


def test_each_prompt_is_shown_as_the_other_configuration_would_send_it(recorded, turnkeeper) -> None:
    done = turnkeeper("replay", "room-1", "--config", "other.yaml")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == "room-1: 3 of 3 prompts differ"
    assert '+ content: "ann: No, a story"' in done.stdout
    assert "caller did not hear" in done.stdout
    # What is no message stands under a heading of its own.
    assert done.stdout.count("\n~ parameters\n  + temperature: 0.3\n") == 3


def test_it_says_what_a_recording_does_not_have(recorded, turnkeeper) -> None:
    first, _ = turnkeeper("replay", "room-1").stdout.split("\n", 1)
    assert first == (
        "Not recorded, and so not replayed: the client's system messages and parameters, passages from other "
        "calls, and episodes."
    )
    assert json.loads(turnkeeper("replay", "room-1", "--json").stdout)


def test_nothing_differs_under_the_same_configuration(recorded, turnkeeper) -> None:
    before = recorded.client.get("/v1/memory/sessions/room-1").json()
    done = turnkeeper("replay", "room-1", "--config", "present.yaml")
    assert done.returncode == 0
    assert done.stdout.splitlines()[-1] == "room-1: 0 of 3 prompts differ"
    assert recorded.client.get("/v1/memory/sessions/room-1").json() == before


def test_a_replayed_prompt_is_what_was_sent(recorded, turnkeeper, upstream) -> None:
    sent = [one.json["messages"] for one in upstream.requests]
    rows = json.loads(turnkeeper("replay", "room-1", "--json").stdout)
    # The fact came to be known after the last of them.
    assert [row["after"]["messages"] for row in rows] == sent
    assert [row["number"] for row in rows] == [1, 2, 3]


def test_one_prompt_and_a_shorter_window(recorded, turnkeeper) -> None:
    (row,) = json.loads(
        turnkeeper(
            "replay", "room-1", "--turn", "3", "--window", "1", "--json", "--config", "other.yaml"
        ).stdout
    )
    assert row["after"]["messages"] == [{"role": "user", "content": "ann: No, a story"}]
    # The present one restores what the window leaves out.
    assert len(row["before"]["messages"]) == 5


def test_saved_prompts_are_cases_that_hold(recorded, turnkeeper, folder) -> None:
    done = turnkeeper("replay", "room-1", "--config", "other.yaml", "--save", "other.yaml")
    assert (done.returncode, done.stderr) == (0, "")
    assert "3 cases appended to other.yaml" in done.stdout
    text = (folder / "other.yaml").read_text()
    assert text.startswith(OTHER.rstrip().removesuffix("# The end.").rstrip())
    assert "# The end." in text
    tried = turnkeeper("test", "other.yaml")
    assert (tried.returncode, tried.stdout.splitlines()[-1]) == (0, "4 passed"), tried.stdout
    turnkeeper("replay", "room-1", "--save", "other.yaml")
    assert (folder / "other.yaml").read_text() == text
    turnkeeper("replay", "room-1", "--save", "present.yaml", "--turn", "2")
    assert turnkeeper("test", "present.yaml").stdout.splitlines()[-1] == "1 passed"


def test_a_session_that_expired_comes_from_the_archive(recorded, turnkeeper, folder, upstream) -> None:
    sent = [one.json["messages"] for one in upstream.requests]
    with closing(sqlite3.connect(folder / "m.db", timeout=10)) as database:
        awaited(lambda: database.execute("SELECT count(*) FROM turnkeeper_turns").fetchone() == (6,))
        with database:
            database.execute("DELETE FROM turnkeeper_sessions")
    rows = json.loads(turnkeeper("replay", "room-1", "--json").stdout)
    assert [row["after"]["messages"] for row in rows] == sent


def test_a_session_that_cannot_be_read_is_named(recorded, turnkeeper, folder) -> None:
    with closing(sqlite3.connect(folder / "m.db", timeout=10)) as database:
        # Archived, and so written as well.
        awaited(lambda: database.execute("SELECT count(*) FROM turnkeeper_turns").fetchone() == (6,))
        with database:
            database.execute("UPDATE turnkeeper_sessions SET blob = x'00'")
    done = turnkeeper("replay", "room-1")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "The stored session 'room-1' cannot be read.\n"


def test_what_cannot_be_replayed_is_named(recorded, turnkeeper) -> None:
    for arguments, code, words in (
        (["nobody"], 1, "There is no conversation 'nobody'"),
        (["room-1", "--config", "no.yaml"], 1, "no.yaml"),
        (["room-1", "--pipeline", "x"], 2, "there is no pipeline 'x'; available: default"),
        (["room-1", "--turn", "9"], 2, "no prompt 9"),
        (["room-1", "--save", "no.yaml"], 1, "no.yaml"),
    ):
        done = turnkeeper("replay", *arguments)
        assert (done.returncode, done.stdout) == (code, "")
        assert words in done.stderr
        assert "Traceback" not in done.stderr
