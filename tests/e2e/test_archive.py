"""The archive from outside: a second call knows the first, and a person can be forgotten."""

import asyncio
import json
import os
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from proxy.memory.errors import StoreError
from proxy.memory.session import Entry, Session, encode
from proxy.memory.stores.store import BlobWrite, Key
from tests import preloaded
from tests.peers.fake_upstream import FakeUpstream
from tests.proxy_server import ProxyServer, Serve
from tests.remembering import settle
from tests.serving_process import LISTEN, ServingProcess
from tests.waiting import awaited, until

CONFIG = """
keys: "${KEYS:-}"
memory:
  sessions: "${MEMORY_URL}"
  deadline: "${DEADLINE:-5s}"
  encryption: ["${KEY:-}"]
  archive: {url: "${ARCHIVE_URL:-}", keep: "${KEEP:-forever}"}
upstreams: {main: {base_url: "${UPSTREAM_BASE_URL:-practice:}"}}
pipelines:
  default: {upstreams: [main], request: [restore_history, recall]}
  plain: {upstreams: [main], request: [restore_history]}
"""
WORDS = "My scarecrow is called Ferdinand."
KEY = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="
OTHER_KEY = f"B{KEY[1:]}"
ACME = {"authorization": "Bearer one"}
OTHER = {"authorization": "Bearer two"}
KEYS = "acme:one,other:two"


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:{tmp_path / 'memory.db'}"


@pytest.fixture
def archiving(serve: Serve, url: str) -> ProxyServer:
    return serve(CONFIG, MEMORY_URL=url)


def say(proxy: ProxyServer, *texts: str, session: str = "s1", user: str = "ann", **more: Any) -> Any:
    messages = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]
    headers = {"X-Session-Id": session, **({"X-User-Id": user} if user else {}), **more.pop("headers", {})}
    return proxy.chat(messages, headers=headers, **more)


def search(proxy: ProxyServer, query: str = "scarecrow", **body: Any) -> list[dict[str, Any]]:
    headers = body.pop("headers", {})
    found = proxy.client.post(
        "/v1/memory/search", json={"user": "ann", "query": query, **body}, headers=headers
    )
    assert found.status_code == 200, found.text
    return found.json()["results"]


def sent(upstream: FakeUpstream) -> list[dict[str, Any]]:
    return json.loads(upstream.requests[-1].body)["messages"]


def raw(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.glob("*.db*"))


def test_a_second_call_is_told_what_bears_on_it(archiving: ProxyServer, upstream: FakeUpstream):
    say(archiving, WORDS)
    settle(archiving)
    reply = say(archiving, "What is my scarecrow called?", session="s2")
    assert "x-turnkeeper-degraded" not in reply.headers
    (message,) = sent(upstream)
    assert message["content"].startswith("<recall>\n")
    assert f"the caller said: {WORDS}\n" in message["content"]
    assert message["content"].endswith("\n</recall>\n\nWhat is my scarecrow called?")


def fill(proxy: ProxyServer, numbers: range) -> None:
    """Sessions of somebody else, spoken in now."""
    memory, now = proxy.app.memory, time.time()
    entry = Entry(role="user", turn=0, content="Hello.", recorded_at=now)
    blob = encode(Session(entries=(entry,), user="bob", created=now, updated=now))
    assert memory is not None

    async def filled() -> None:
        keys = (Key("default", f"m{i:05d}") for i in numbers)
        await asyncio.gather(*(memory.store.write(key, BlobWrite(blob, version=0, ttl=3600)) for key in keys))

    proxy.run(filled())


def last_talk(proxy: ProxyServer) -> str:
    [message] = proxy.client.get("/v1/memory/users/ann/system_messages").json()
    return message["content"]


@pytest.mark.parametrize("keep", ["forever", "off"])
def test_the_last_talk_is_found_among_many(serve: Serve, url: str, keep: str):
    proxy = serve(CONFIG, MEMORY_URL=url, KEEP=keep)
    fill(proxy, range(1100))
    say(proxy, WORDS, session="a")
    settle(proxy)
    say(proxy, "I also have a wheelbarrow.", session="z")
    settle(proxy)
    fill(proxy, range(1100, 1400))
    assert "wheelbarrow" in last_talk(proxy) and "scarecrow" not in last_talk(proxy)


def test_a_talk_that_is_not_archived_yet_is_the_last_one(archiving: ProxyServer):
    say(archiving, WORDS, session="a")
    settle(archiving)
    archivist = archiving.app.memory.archiving.archivist
    with pytest.MonkeyPatch.context() as held_up:
        held_up.setattr(archivist, "_quiet", 60)
        say(archiving, "I also have a wheelbarrow.", session="b")
        awaited(lambda: Key("default", "b") in archivist.progress.pending)
        assert "wheelbarrow" in last_talk(archiving)


def test_the_last_talk_is_told_while_the_archive_is_gone(
    archiving: ProxyServer, monkeypatch: pytest.MonkeyPatch
):
    async def gone(*_: Any, **__: Any) -> Any:
        raise StoreError("gone")

    say(archiving, WORDS)
    settle(archiving)
    monkeypatch.setattr(archiving.app.memory.archiving.archive, "latest_turns", gone)
    assert WORDS in last_talk(archiving)
    assert archiving.client.get("/v1/memory/users/bob/system_messages").status_code == 503


def test_the_last_talk_is_told_when_its_session_has_gone(archiving: ProxyServer):
    say(archiving, WORDS)
    settle(archiving)
    archiving.run(archiving.app.memory.store.delete(Key("default", "s1")))
    assert WORDS in last_talk(archiving)


def at_hour(hour: int) -> str:
    """A time zone in which it is this hour now."""
    ahead = (hour - time.gmtime().tm_hour + 12) % 24 - 12
    return f"Etc/GMT{-ahead:+d}"


@pytest.mark.parametrize(("hour", "is_told"), [(6, True), (18, False)])
def test_yesterday_is_where_the_step_says(
    serve: Serve, url: str, upstream: FakeUpstream, hour: int, is_told: bool
):
    step = f"{{recall: {{timezone: {at_hour(hour)}}}}}"
    proxy = serve(CONFIG.replace("restore_history, recall]", f"restore_history, {step}]"), MEMORY_URL=url)
    at = int((time.time() - 12 * 3600) * 1000)
    told = {"role": "user", "content": WORDS, "turn_id": 0, "timestamp": at, "metadata": {"user": "ann"}}
    proxy.client.put("/v1/memory/sessions/s1", json={"contents": [told]}).raise_for_status()
    settle(proxy)
    asked = "Anything from yesterday?"
    say(proxy, asked, session="s2")
    assert (WORDS in sent(upstream)[-1]["content"]) == is_told
    assert (WORDS in str(search(proxy, asked))) == is_told
    page = proxy.client.get("/users/ann", params={"query": asked}).text
    assert ("/conversations/s1" in page.partition('id="calls"')[0]) == is_told


def test_what_is_recalled_is_never_stored(archiving: ProxyServer):
    say(archiving, WORDS)
    settle(archiving)
    say(archiving, "What is my scarecrow called?", session="s2")
    settle(archiving)
    held = archiving.client.get("/v1/memory/sessions/s2").text
    assert "called?" in held and "Ferdinand" not in held
    assert all("<recall>" not in one["text"] for one in search(archiving))


@pytest.mark.parametrize("who", [{"user": "bob"}, {"user": ""}])
def test_nobody_else_is_told(archiving: ProxyServer, upstream: FakeUpstream, who: dict[str, str]):
    say(archiving, WORDS)
    settle(archiving)
    say(archiving, "What is my scarecrow called?", session="s2", **who)
    assert [message["content"] for message in sent(upstream)] == ["What is my scarecrow called?"]


def test_a_pipeline_without_the_step_and_background_work_are_told_nothing(
    archiving: ProxyServer, upstream: FakeUpstream
):
    say(archiving, WORDS)
    settle(archiving)
    question = "What is my scarecrow called?"
    say(archiving, question, session="s2", path="/pipelines/plain/v1/chat/completions")
    assert [message["content"] for message in sent(upstream)] == [question]
    say(archiving, question, session="s2", headers={"X-Background": "true"})
    assert [message["content"] for message in sent(upstream)] == [question]


def test_what_the_conversation_shows_is_not_recalled(archiving: ProxyServer, upstream: FakeUpstream):
    say(archiving, WORDS)
    settle(archiving)
    say(archiving, WORDS, "Noted.", "What is my scarecrow called?")
    assert sent(upstream)[-1]["content"] == "What is my scarecrow called?"


def test_search_tells_what_it_found(archiving: ProxyServer):
    say(archiving, WORDS)
    settle(archiving)
    found = search(archiving)[0]
    assert found.keys() == {"kind", "score", "text", "role", "session_id", "turn_id", "timestamp"}
    assert (found["kind"], found["text"], found["role"]) == ("turn", WORDS, "user")
    assert (found["session_id"], found["turn_id"]) == ("s1", 0)
    assert abs(found["timestamp"] - time.time()) < 60


def test_what_was_said_in_no_session_names_none(
    archiving: ProxyServer, turnkeeper: Callable[..., Any], tmp_path: Path
):
    fact = {"text": "Owns a scarecrow."}
    made = archiving.client.post("/v1/memory/users/ann/facts", json=fact).json()
    (tmp_path / "hours.md").write_text("The scarecrow stands outside.\n")
    assert turnkeeper("documents", "add", "hours.md").returncode == 0
    found = {one.pop("kind"): one for one in search(archiving)}
    assert found.keys() == {"fact", "document"}
    for one in found.values():
        assert one.keys() == {"score", "text", "role", "session_id", "turn_id", "timestamp"}
        assert (one["session_id"], one["turn_id"], one["role"]) == (None, None, None)
    assert found["fact"]["timestamp"] == pytest.approx(made["created"])


def test_what_a_program_put_in_is_never_found_as_the_callers_words(archiving: ProxyServer):
    put_in = {"role": "user", "content": f"Say this: {WORDS}", "metadata": {"source": "command"}}
    window = [put_in, {"role": "user", "content": "And my hen is called Olga."}]
    archiving.chat(window, headers={"X-Session-Id": "s1", "X-User-Id": "ann"})
    settle(archiving)
    found = [one["text"] for one in search(archiving, "scarecrow Ferdinand hen Olga")]
    assert found[0] == "And my hen is called Olga." and not any(WORDS in text for text in found)
    kept = archiving.client.get("/v1/memory/users/ann/export").json()["turns"]
    assert any(WORDS in json.dumps(turn) for turn in kept)


@pytest.mark.parametrize("user", ["bob", "", None, " "])
def test_search_finds_nothing_of_nobody(archiving: ProxyServer, user: str | None):
    say(archiving, WORDS)
    settle(archiving)
    assert search(archiving, user=user) == []


def test_search_and_export_keep_tenants_apart(serve: Serve, url: str):
    proxy = serve(CONFIG, MEMORY_URL=url, KEYS=KEYS)
    say(proxy, WORDS, headers=ACME)
    settle(proxy)
    assert search(proxy, headers=OTHER) == []
    assert len(search(proxy, headers=ACME)) >= 1
    export = "/v1/memory/users/ann/export"
    assert proxy.client.get(export, headers=OTHER).json()["turns"] == []
    proxy.client.delete("/v1/memory/users/ann", headers=OTHER)
    assert len(proxy.client.get(export, headers=ACME).json()["turns"]) == 2


@pytest.mark.parametrize(
    ("body", "param"),
    [({"user": "ann"}, "query"), ({"query": "x", "limit": 0}, "limit"), ({"query": "x", "usr": "a"}, "usr")],
)
def test_a_wrong_question_is_told(archiving: ProxyServer, body: dict[str, Any], param: str):
    refused = archiving.client.post("/v1/memory/search", json=body)
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == param


def test_no_more_is_found_than_may_be(archiving: ProxyServer, monkeypatch: pytest.MonkeyPatch):
    asked: list[int] = []
    memory = archiving.app.memory
    assert memory and memory.archiving
    finder = memory.archiving.retriever
    find = finder.search

    async def noting(person: Any, query: Any) -> Any:
        asked.append(query.limit)
        return await find(person, query)

    monkeypatch.setattr(finder, "search", noting)
    say(archiving, WORDS)
    settle(archiving)
    assert len(search(archiving, limit=1)) == 1
    assert search(archiving, limit=100) == search(archiving, limit=1000)
    assert asked == [1, 100, 100]


def test_without_an_archive_the_search_finds_facts_and_says_that_it_is_degraded(serve: Serve):
    proxy = serve(CONFIG, MEMORY_URL="memory:")
    proxy.client.post("/v1/memory/users/ann/facts", json={"text": "Has a dog called Rex."})
    got = proxy.client.post("/v1/memory/search", json={"user": "ann", "query": "Rex"})
    assert [one["text"] for one in got.json()["results"]] == ["Has a dog called Rex."]
    assert got.headers["x-turnkeeper-degraded"] == "recall"


def test_with_the_archive_switched_off_the_search_says_what_to_set(serve: Serve):
    proxy = serve(CONFIG, MEMORY_URL="memory:", KEEP="off")
    refused = proxy.client.post("/v1/memory/search", json={"user": "ann", "query": "x"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (404, "archive_off")
    assert say(proxy, WORDS).status_code == 200


def test_turns_outlive_their_session(archiving: ProxyServer):
    say(archiving, WORDS)
    settle(archiving)
    assert archiving.client.delete("/v1/memory/sessions/s1").status_code == 204
    assert search(archiving)[0]["text"] == WORDS


def test_turns_outlive_their_session_that_is_deleted_at_once(archiving: ProxyServer):
    with pytest.MonkeyPatch.context() as held_up:
        held_up.setattr(archiving.app.memory.archiving.archivist, "_quiet", 60)
        say(archiving, WORDS)
        awaited(lambda: archiving.client.get("/v1/memory/sessions/s1").status_code == 200)
        assert archiving.client.delete("/v1/memory/sessions/s1").status_code == 204
        settle(archiving)
    assert [each["text"] for each in search(archiving)] == [WORDS]


def test_a_session_that_is_deleted_at_once_is_archived_beside_a_background_process(
    tmp_path: Path, upstream: FakeUpstream
):
    environ = {"MEMORY_URL": f"sqlite:{tmp_path / 'memory.db'}", "UPSTREAM_BASE_URL": upstream.url}
    with ServingProcess(tmp_path, LISTEN + CONFIG, **environ) as server:

        def found(query: str) -> list[str]:
            got = server.client.post("/v1/memory/search", json={"user": "ann", "query": query})
            return [each["text"] for each in got.json()["results"]]

        # The background has compared store and archive, as it does at its start, and waits for quiet now.
        assert server.chat("I have a hen.", "s0", user="ann").status_code == 200
        assert until(lambda: found("hen") == ["I have a hen."])
        assert server.chat(WORDS, "s1", user="ann").status_code == 200
        assert until(lambda: server.client.get("/v1/memory/sessions/s1").status_code == 200)
        assert server.client.delete("/v1/memory/sessions/s1").status_code == 204
        assert found("scarecrow") == [WORDS]


def test_with_its_session_go_the_turns_of_nobody(archiving: ProxyServer, tmp_path: Path):
    say(archiving, WORDS, user="")
    settle(archiving)
    assert archiving.client.delete("/v1/memory/sessions/s1").status_code == 204
    with sqlite3.connect(tmp_path / "memory.db") as connection:
        assert connection.execute("SELECT COUNT(*) FROM turnkeeper_turns").fetchone() == (0,)
    connection.close()


def strangers(folder: Path) -> int:
    """How many turns of nobody are in the archive."""
    with closing(sqlite3.connect(folder / "memory.db")) as connection:
        count: int = connection.execute(
            "SELECT COUNT(*) FROM turnkeeper_turns WHERE owner IS NULL"
        ).fetchone()[0]
    return count


def test_turns_of_nobody_that_were_to_be_archived_go_with_their_session(
    archiving: ProxyServer, tmp_path: Path
):
    path = "/v1/memory/sessions/s1"
    say(archiving, WORDS, user="")
    awaited(lambda: archiving.client.get(path).status_code == 200)
    assert archiving.client.delete(path).status_code == 204
    settle(archiving)
    assert strangers(tmp_path) == 0
    say(archiving, "Hello again.", user="")
    settle(archiving)
    assert strangers(tmp_path) == 2


def test_an_import_is_archived(archiving: ProxyServer):
    contents = [{"role": "user", "content": WORDS, "turn_id": 0, "metadata": {"user": "ann"}}]
    archiving.client.put("/v1/memory/sessions/s9", json={"contents": contents})
    settle(archiving)
    assert [one["text"] for one in search(archiving)] == [WORDS]


def test_of_an_import_no_answer_takes_the_place_of_another(archiving: ProxyServer):
    """It is archived in pages, of which one ends within a turn."""
    look = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    parted = [
        {"role": "user", "content": "What is he called?", "turn_id": 98, "metadata": {"user": "ann"}},
        {"role": "assistant", "content": "Let me look.", "tool_calls": [look], "turn_id": 98},
        {"role": "tool", "content": "Ferdinand", "tool_call_id": "c1", "turn_id": 98},
        {"role": "assistant", "content": "He is called Ferdinand.", "turn_id": 98},
    ]
    said = [{"role": "user", "content": f"Word {i}.", "turn_id": i} for i in range(180)]
    contents = [*said[:98], *parted, *said[99:]]
    archiving.client.put("/v1/memory/sessions/s9", json={"contents": contents})
    whole = {one["content"] for one in contents}
    assert until(lambda: kept(archiving) == whole), whole - kept(archiving)


def kept(proxy: ProxyServer) -> set[str]:
    turns = proxy.client.get("/v1/memory/users/ann/export").json()["turns"]
    return {turn["message"]["content"] for turn in turns}


def test_what_a_kill_left_unarchived_is_found_at_the_next_start(serve: Serve, url: str, tmp_path: Path):
    off = serve(CONFIG, MEMORY_URL=url, KEEP="off")
    for end in range(1, 90, 2):  # past the 60 messages that a session holds
        say(off, *(f"{WORDS} {i}" for i in range(end)))
    settle(off)
    again = serve(CONFIG, MEMORY_URL=url)
    settle(again)
    turns = again.client.get("/v1/memory/users/ann/export").json()["turns"]
    said = {turn["message"]["content"] for turn in turns}
    assert {f"{WORDS} {i}" for i in range(89)} <= said


def test_a_session_that_cannot_be_read_holds_up_no_other(serve: Serve, url: str, tmp_path: Path):
    off = serve(CONFIG, MEMORY_URL=url, KEEP="off")
    say(off, WORDS)
    settle(off)
    with closing(sqlite3.connect(tmp_path / "memory.db")) as connection, connection:
        connection.execute("UPDATE turnkeeper_sessions SET blob = X'C1'")
    again = serve(CONFIG, MEMORY_URL=url)
    assert say(again, WORDS, session="s2").status_code == 200
    settle(again)
    assert search(again)


def test_a_slow_archive_costs_a_call_its_deadline_and_no_more(serve: Serve, upstream: FakeUpstream):
    """Nobody answers at this address."""
    nobody = "postgresql://127.0.0.1:9/none"
    proxy = serve(CONFIG, MEMORY_URL="memory:", ARCHIVE_URL=nobody, DEADLINE="50ms")
    began = time.monotonic()
    reply = say(proxy, WORDS)
    assert time.monotonic() - began < 1
    assert reply.status_code == 200
    assert reply.headers["x-turnkeeper-degraded"] == "recall"
    assert [message["content"] for message in sent(upstream)] == [WORDS]


# --- one person's rights


def test_an_export_holds_all_that_was_said(archiving: ProxyServer):
    say(archiving, WORDS)
    settle(archiving)
    found = archiving.client.get("/v1/memory/users/ann/export").json()
    assert found.keys() >= {"user", "sessions", "turns", "facts"}
    assert found["sessions"][0]["id"] == "s1"
    assert found["sessions"][0]["contents"][0]["content"] == WORDS
    assert found["turns"][0]["session_id"] == "s1"
    assert found["turns"][0]["message"]["content"] == WORDS


@pytest.mark.parametrize("key", ["", KEY])
def test_of_a_forgotten_person_nothing_is_left_in_the_files(serve: Serve, url: str, tmp_path: Path, key: str):
    proxy = serve(CONFIG, MEMORY_URL=url, KEY=key)
    for i in range(8):
        say(proxy, f"{WORDS} {i}", session=f"s{i}")
        say(proxy, f"Marmalade {i}.", session=f"b{i}", user="bob")
    settle(proxy)
    assert len(search(proxy)) >= 8
    assert all(
        (word in raw(tmp_path)) is not key for word in (b"scarecrow", b"ferdinand", b"Ferdinand") if not key
    )
    assert (b"Ferdinand" in raw(tmp_path)) is not bool(key)
    assert proxy.client.delete("/v1/memory/users/ann").status_code == 204
    left = raw(tmp_path)
    assert [word for word in (b"carecrow", b"erdinand") if word in left] == []
    assert (b"Marmalade" in left) is not bool(key)
    assert search(proxy) == []
    assert len(search(proxy, "marmalade", user="bob")) >= 8
    assert proxy.client.get("/v1/memory/sessions/s1").status_code == 404
    assert proxy.client.delete("/v1/memory/users/ann").status_code == 204


def test_a_session_that_nobody_can_read_costs_nobody_else_their_rights(serve: Serve, url: str):
    proxy, lost = (serve(CONFIG, MEMORY_URL=url, KEY=key) for key in (KEY, OTHER_KEY))
    say(proxy, WORDS, session="s1")
    settle(proxy)
    say(lost, WORDS, session="lost", user="carl")
    settle(lost)
    assert WORDS in proxy.client.get("/v1/memory/users/ann/system_messages").text
    export, path = "/v1/memory/users/ann/export", "/v1/memory/users/ann"
    assert [one["id"] for one in proxy.client.get(export).json()["sessions"]] == ["s1"]
    assert proxy.client.delete(path).status_code == 409  # it may be theirs
    left = proxy.client.get(export).json()
    assert (left["sessions"], left["turns"]) == ([], [])
    (encrypted,) = left["unreadable_sessions"]
    assert encrypted != "lost"
    assert proxy.client.delete(f"/v1/memory/sessions/{encrypted}").status_code == 204
    assert proxy.client.delete(path).status_code == 204


def test_a_forgotten_person_who_calls_again_is_remembered_from_then_on(archiving: ProxyServer):
    say(archiving, WORDS)
    settle(archiving)
    archiving.client.delete("/v1/memory/users/ann")
    say(archiving, "I also have a wheelbarrow.", session="s2")
    settle(archiving)
    assert search(archiving) == []
    assert search(archiving, "wheelbarrow")[0]["text"] == "I also have a wheelbarrow."


@pytest.fixture
def turnkeeper(tmp_path: Path, url: str) -> Callable[..., Any]:
    def run(*arguments: str) -> Any:
        (tmp_path / "turnkeeper.yaml").write_text(CONFIG)
        environ = {**os.environ, "MEMORY_URL": url}
        return preloaded.run(*arguments, "--config", "turnkeeper.yaml", folder=tmp_path, env=environ)

    return run


def test_the_commands_do_the_same_beside_a_server(
    archiving: ProxyServer, turnkeeper: Callable[..., Any], tmp_path: Path
):
    say(archiving, WORDS)
    say(archiving, f"{WORDS} Too.", session="s2")
    settle(archiving)
    found = json.loads(turnkeeper("export", "ann").stdout)
    assert {turn["session_id"] for turn in found["turns"]} == {"s1", "s2"}
    done = turnkeeper("forget", "--session", "s2")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "Forgotten: 1 session, 2 turns.\n"
    assert [one["session_id"] for one in search(archiving) if one["role"] == "user"] == ["s1"]
    archiving.client.post("/v1/memory/users/ann/facts", json={"text": "Has a scarecrow."})
    archiving.client.put(
        "/v1/memory/users/ann/profile", json={"text": "Ann has a scarecrow."}
    ).raise_for_status()
    done = turnkeeper("forget", "ann")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "Forgotten: 1 session, 2 turns, 1 fact, 1 profile.\n"
    assert turnkeeper("forget", "ann").stdout == "There was nothing to forget.\n"
    assert search(archiving) == []
    assert b"carecrow" not in raw(tmp_path)


def kept_turns(proxy: ProxyServer, user: str = "ann") -> list[str]:
    """The sessions of the turns that a server keeps of somebody."""
    told = proxy.client.get(f"/v1/memory/users/{user}/export").json()
    return [turn["session_id"] for turn in told["kept_turns"]]


def told_of(proxy: ProxyServer) -> list[str | None]:
    """The sessions of the turns that whoever looks on is shown, the newest first."""
    return [account.session for account in proxy.app.feed.newest("default")]


def test_what_a_terminal_forgets_leaves_the_turns_that_a_server_keeps(
    serve: Serve, url: str, turnkeeper: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("proxy.traces._EVERY", 0.1)
    archiving = serve(CONFIG, MEMORY_URL=url)
    for session in ("s1", "s2", "s3"):
        say(archiving, WORDS, session=session)
    say(archiving, WORDS, session="b1", user="bob")
    settle(archiving)
    assert kept_turns(archiving) == ["s1", "s2", "s3"]
    done = turnkeeper("forget", "--session", "s2")
    assert (done.returncode, done.stderr) == (0, "")
    assert until(lambda: kept_turns(archiving) == ["s1", "s3"])
    assert turnkeeper("forget", "ann").returncode == 0
    say(archiving, "It is me again.", session="s4")
    assert until(lambda: kept_turns(archiving) == ["s4"])
    assert kept_turns(archiving, "bob") == ["b1"]
    assert told_of(archiving) == ["s4", "b1"]


def test_without_an_archive_a_terminal_says_what_it_cannot_reach(
    archiving: ProxyServer, turnkeeper: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
):
    say(archiving, WORDS)
    settle(archiving)
    monkeypatch.setenv("KEEP", "off")
    done = turnkeeper("forget", "ann")
    assert done.returncode == 0
    assert "DELETE /v1/memory/users/ID" in done.stderr


@pytest.mark.parametrize("arguments", [(), ("ann", "--session", "s1")])
def test_whom_to_forget_is_said_once(turnkeeper: Callable[..., Any], arguments: tuple[str, ...]):
    assert turnkeeper("forget", *arguments).returncode == 2


def test_documents_are_added_told_listed_and_removed(
    archiving: ProxyServer, turnkeeper: Callable[..., Any], tmp_path: Path, upstream: FakeUpstream
):
    folder = tmp_path / "handbook"
    folder.mkdir()
    (folder / "hours.md").write_text("# Opening hours\n\nWe open at nine.\n\n# Parking\n\nIt is free.\n")
    (folder / "broken.txt").write_bytes(b"\xff\xfe\x00")
    done = turnkeeper("documents", "add", "handbook")
    assert (done.returncode, done.stdout) == (1, "1 of 2 documents were added.\n")
    assert "handbook/broken.txt: it is not text" in done.stderr
    assert turnkeeper("documents", "list").stdout == "handbook/hours.md\n"
    say(archiving, "What are your opening hours?")
    assert "handbook/hours.md: We open at nine." in sent(upstream)[-1]["content"]
    assert turnkeeper("documents", "remove", "handbook/hours.md").returncode == 0
    assert turnkeeper("documents", "remove", "handbook/hours.md").returncode == 1
    say(archiving, "What are your opening hours?", session="s2")
    assert sent(upstream)[-1]["content"] == "What are your opening hours?"


@pytest.mark.parametrize("key", ["", KEY])
def test_everybody_of_whom_anything_is_kept_is_listed_in_pages(serve: Serve, url: str, key: str) -> None:
    proxy = serve(CONFIG, MEMORY_URL=url, KEYS=KEYS, KEY=key)
    for user, session in (("ann", "s1"), ("ann", "s2"), ("bob", "s3"), ("carla", "s4")):
        say(proxy, WORDS, user=user, session=session, headers=ACME)
    say(proxy, WORDS, user="eve", session="s1", headers=OTHER)
    fact = {"text": "Has a scarecrow."}
    proxy.client.post("/v1/memory/users/dora/facts", json=fact, headers=ACME).raise_for_status()
    settle(proxy)

    def page(headers: dict[str, str] = ACME, **query: Any) -> dict[str, Any]:
        got = proxy.client.get("/v1/memory/users", params=query, headers=headers)
        assert got.status_code == 200, got.text
        return got.json()

    whole = page()
    listed = {one["id"]: (one["facts"], one["sessions"]) for one in whole["data"]}
    assert listed == {"ann": (0, 2), "bob": (0, 1), "carla": (0, 1), "dora": (1, 0)}
    assert all((one["last_seen"] is None) == (one["id"] == "dora") for one in whole["data"])
    assert all(abs(one["last_seen"] - time.time()) < 600 for one in whole["data"] if one["last_seen"])
    assert (whole["has_more"], whole["last_id"]) == (False, whole["data"][-1]["id"])
    first = page(limit=3)
    second = page(limit=3, after=first["last_id"])
    assert (first["has_more"], second["has_more"]) == (True, False)
    assert first["data"] + second["data"] == whole["data"]
    assert [one["id"] for one in page(OTHER)["data"]] == ["eve"]
    wrong = proxy.client.get("/v1/memory/users?limit=none", headers=ACME)
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "limit")
    assert proxy.client.delete("/v1/memory/users/ann", headers=ACME).status_code == 204
    assert "ann" not in {one["id"] for one in page()["data"]}
