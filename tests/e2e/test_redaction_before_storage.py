"""What ``memory.redact`` names is in no store, while the model goes on to see the client's own words."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import asyncpg
import pytest
import redis

from tests.e2e.conftest import Address
from tests.e2e.test_agora_life_cycle import notice, tell
from tests.page_visit import Visit
from tests.peers.fake_upstream import DONE, ROLE, FakeUpstream, delta, sse, stream_of
from tests.proxy_server import ProxyServer, Serve
from tests.remembering import assistant_message, call, settle, stored_entries, texts, user
from tests.waiting import awaited

CARD, MAIL, PHONE, IBAN = (
    "4111 1111 1111 1111",
    "ann@example.org",
    "+49 170 1234567",
    "DE89 3704 0044 0532 0130 00",
)
SECRETS = (CARD, MAIL, PHONE, IBAN, "4111111111111111", "4111 1", "ann@exam", "37040044")
CONFIG = """
memory:
  sessions: "${MEMORY_URL}"
  deadline: 5s
  redact: {patterns: {order: "ORD-[0-9]+"}}
  window: {max_messages: 6, keep_messages: 2}
  summaries: {upstream: main}
  archive: {url: "${ARCHIVE_URL:-}"}
webhooks: {agora: {secret: "s3cret"}}
upstreams: {main: {base_url: "${UPSTREAM_BASE_URL}"}}
pipelines:
  default: {upstreams: [main], request: [repair_history, restore_history, restore_interrupted]}
  summed:
    upstreams: [main]
    request: [repair_history, restore_history, inject_summaries, inject_facts]
    tools: [memory_store]
"""
PLAIN = CONFIG.replace('  redact: {patterns: {order: "ORD-[0-9]+"}}\n', "")
LONG = CONFIG.replace("max_messages: 6, keep_messages: 2", "max_messages: 60, keep_messages: 20")
WHO = {"X-Session-Id": "s1", "X-User-Id": "ann"}


def shown(upstream: FakeUpstream) -> list[tuple[str, Any]]:
    return [(m["role"], m.get("content")) for m in upstream.last.json["messages"]]


@pytest.fixture
def serve_on(serve: Serve, tmp_path: Path) -> Serve:
    def on(config: str = LONG) -> ProxyServer:
        return serve(config, MEMORY_URL=f"sqlite:{tmp_path / 'memory.db'}")

    return on


@pytest.fixture
def proxy(serve_on: Serve) -> ProxyServer:
    return serve_on()


def bytes_in(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.glob("*.db*"))


def traces_of(kept: bytes) -> list[str]:
    return [word for word in SECRETS if word.encode() in kept]


def everything_is_said(proxy: ProxyServer, upstream: FakeUpstream) -> None:
    """Each way in that there is, each with words that must not be stored."""
    post, put = proxy.client.post, proxy.client.put
    pay = {"name": "pay", "arguments": json.dumps({"card": 4111111111111111, "to": [IBAN], MAIL: 1})}
    tool = {"id": "c1", "type": "function", "function": pay}
    cut = {"interrupted": True, "original": f"Paid by {CARD}, {PHONE}."}
    link = {"type": "image_url", "image_url": {"url": f"https://x.test/?to={MAIL}"}}
    window: list[dict[str, Any]] = [
        {"role": "user", "content": f"My card is {CARD}, ORD-4711."},
        {"role": "assistant", "content": None, "tool_calls": [tool]},
        {"role": "tool", "tool_call_id": "c1", "content": f"Paid from {IBAN}."},
        {
            "role": "assistant",
            "content": f"Paid by {CARD}",
            "metadata": cut,
        },
        {
            "role": "user",
            "content": [
                {"type": "text", "text": f"Write to {MAIL}."},
                link,
            ],
        },
    ]
    upstream.script = lambda _: sse(stream_of("I write to ann@exam", f"ple.org and call {PHONE}."))
    assert proxy.chat(window, headers=WHO, stream=True).status_code == 200
    settle(proxy)
    calling = {
        "index": 0,
        "id": "c2",
        "type": "function",
        "function": {"name": "memory_store", "arguments": json.dumps({"text": f"Pays with {CARD}."})},
    }
    rounds = iter([sse(ROLE + delta(tool_calls=[calling]) + delta(finish="tool_calls") + DONE)])
    upstream.script = lambda _: next(rounds, sse(stream_of("Noted.")))
    path = "/pipelines/summed/v1/chat/completions"
    proxy.chat([*window, {"role": "user", "content": f"Note {CARD}."}], headers=WHO, stream=True, path=path)
    upstream.script = lambda _: sse(stream_of("Well."))
    for n in range(4):
        call(proxy, user(f"Number {n} is {PHONE}."), session="s1", stream=True)
    post("/v1/memory/users/ann/facts", json={"text": f"Has {IBAN}."}).raise_for_status()
    fact = post("/v1/memory/users/ann/facts", json={"text": "Has a dog."}).json()["id"]
    proxy.client.patch(f"/v1/memory/users/ann/facts/{fact}", json={"text": f"Has {CARD}."}).raise_for_status()
    contents = [user(f"I am {MAIL}.", 0), assistant_message(f"Hello {MAIL}.", 0)]
    own = {"text": f"Told {PHONE}.", "messages": 2}
    put("/v1/memory/sessions/s2", json={"contents": contents, "summaries": [own]}).raise_for_status()
    exported = proxy.client.get("/v1/memory/sessions/s2").json()
    exported["contents"][0]["content"] = f"I have {CARD}."
    put("/v1/memory/sessions/s3", json=exported).raise_for_status()
    made = {"id": "s4", "contents": contents, "state": {"call": PHONE, MAIL: [4111111111111111]}}
    post("/v1/memory/sessions", json=made).raise_for_status()
    put("/v1/memory/sessions/s3/state", json={"to": MAIL}).raise_for_status()
    proxy.client.patch("/v1/memory/sessions/s3/state", json={"from": PHONE}).raise_for_status()
    notes = {"messages": [user(f"My order is ORD-4711 for {MAIL}.")]}
    post("/v1/memory/sessions/s5/summaries", json=notes).raise_for_status()
    post("/v1/memory/sessions/s2/summaries", json={}).raise_for_status()
    episode = {"interaction_type": "mailed", "content": f"Mailed {MAIL}.", "metadata": {"to": [MAIL]}}
    post("/v1/memory/agents/nova/episodes", json=episode).raise_for_status()
    told = [{"role": "user", "content": f"Ring {PHONE}."}, {"role": "assistant", "content": f"{CARD}?"}]
    assert tell(proxy, notice(103, contents=told, channel="room-9")) == "taken"
    settle(proxy)
    awaited(lambda: proxy.client.get("/v1/memory/sessions/s1/summaries").json()["data"])
    settle(proxy)


def dumped(kind: str, folder: Path, url: str) -> bytes:
    """Returns all bytes in a store."""
    if kind == "redis":
        with redis.Redis.from_url(url) as client:
            client.config_set("rdbcompression", "no")
            client.save()
        return b"".join(path.read_bytes() for path in folder.rglob("*.rdb"))
    if kind == "postgresql":
        return asyncio.run(_rows(url))
    return bytes_in(folder)


async def _rows(url: str) -> bytes:
    connection = await asyncpg.connect(url)
    try:
        schema = "select table_name from information_schema.tables where table_schema = current_schema()"
        rows: list[Any] = []
        for (name,) in await connection.fetch(schema):
            rows += await connection.fetch(f'select * from "{name}"')
    finally:
        await connection.close()
    assert rows
    values = [value for row in rows for value in row.values()]
    return b"\n".join(value if isinstance(value, bytes) else str(value).encode() for value in values)


@pytest.mark.parametrize("kind", ["sqlite", "redis", "postgresql"])
def test_no_store_holds_what_must_not_be_stored_whichever_way_it_came(
    kind: str,
    serve: Serve,
    upstream: FakeUpstream,
    address: Address,
    tmp_path: Path,
) -> None:
    url = address(kind)
    archive = f"sqlite:{tmp_path / 'archive.db'}" if kind == "redis" else ""
    proxy = serve(CONFIG, MEMORY_URL=url, ARCHIVE_URL=archive)
    everything_is_said(proxy, upstream)
    kept = dumped(kind, tmp_path, url) + bytes_in(tmp_path)
    assert b"[card]" in kept and b"[email]" in kept
    assert traces_of(kept) == []
    assert b"ORD-4711" not in kept and b"ORD" not in kept


def test_the_same_words_are_stored_where_nothing_is_set(
    serve_on: Serve, upstream: FakeUpstream, tmp_path: Path
) -> None:
    everything_is_said(serve_on(PLAIN), upstream)
    assert set(SECRETS) - set(traces_of(bytes_in(tmp_path))) <= {"4111111111111111", "37040044"}


def test_the_model_sees_the_clients_own_words_of_the_window(
    proxy: ProxyServer, upstream: FakeUpstream
) -> None:
    upstream.script = lambda _: sse(stream_of(f"Is it {CARD}?"))
    window = [user(f"My card is {CARD}.")]
    for words in ("Yes.", f"And write to {MAIL}.", "Thank you."):
        call(proxy, *window, stream=True)
        assert shown(upstream) == [(m["role"], m["content"]) for m in window]
        window += [assistant_message(f"Is it {CARD}?"), user(words)]
    assert texts(stored_entries(proxy))[:3] == [
        ("user", "My card is [card]."),
        ("assistant", "Is it [card]?"),
        ("user", "Yes."),
    ]
    assert len(stored_entries(proxy)) == 6


def test_what_memory_brings_back_bears_marks(proxy: ProxyServer, upstream: FakeUpstream) -> None:
    upstream.script = lambda _: sse(stream_of(f"Is it {CARD}?"))
    first = [user(f"My card is {CARD}."), assistant_message(f"Is it {CARD}?"), user("Yes.")]
    call(proxy, first[0], stream=True)
    call(proxy, *first, stream=True)
    settle(proxy)
    call(proxy, first[2], assistant_message(f"Is it {CARD}?"), user(f"Ring {PHONE}."), stream=True)
    assert shown(upstream) == [
        ("user", "My card is [card]."),
        ("assistant", "Is it [card]?"),
        ("user", "Yes."),
        ("assistant", f"Is it {CARD}?"),
        ("user", f"Ring {PHONE}."),
    ]


@pytest.mark.parametrize(
    "heard", ["Your card is 4111 11", "Your card is 4111 11...", "Your card is", "Your card is 4"]
)
def test_an_answer_that_was_cut_within_a_number_stays_one_answer(
    proxy: ProxyServer, upstream: FakeUpstream, tmp_path: Path, heard: str
) -> None:
    upstream.script = lambda _: sse(stream_of(f"Your card is {CARD}, is that right?"))
    window = [user("Which card do I have?")]
    call(proxy, *window, stream=True)
    settle(proxy)
    upstream.script = lambda _: sse(stream_of("Sorry."))
    window += [assistant_message(heard), user("Stop.")]
    call(proxy, *window, stream=True)
    told = upstream.last.json["messages"]
    assert [m["role"] for m in told] == ["user", "assistant", "user"]
    assert heard.rstrip(".") in told[1]["content"] and "[card], is that right?" in told[1]["content"]
    window += [assistant_message("Sorry."), user("Go on.")]
    call(proxy, *window, stream=True)
    entries = stored_entries(proxy)
    assert texts(entries) == [
        ("user", "Which card do I have?"),
        ("assistant", "Your card is"),
        ("user", "Stop."),
        ("assistant", "Sorry."),
        ("user", "Go on."),
        ("assistant", "Sorry."),
    ]
    assert entries[1].interrupted and entries[1].original == "Your card is [card], is that right?"
    settle(proxy)
    assert b"4111 1" not in bytes_in(tmp_path)


@pytest.mark.parametrize("config", [LONG, PLAIN])
@pytest.mark.parametrize("before", [[], [user("Hello."), assistant_message("Hi.")]])
def test_words_that_an_engine_asks_with_before_their_end_are_one_turn(
    serve_on: Serve, upstream: FakeUpstream, config: str, before: list[dict[str, Any]]
) -> None:
    proxy = serve_on(config)
    upstream.script = lambda _: sse(ROLE + delta(content="Let me"))
    call(proxy, *before, user("My card is 4111 1111"), stream=True)
    settle(proxy)
    upstream.script = lambda _: sse(stream_of("Well."))
    call(proxy, *before, user(f"My card is {CARD}"), stream=True)
    number = "[card]" if config is LONG else CARD
    assert texts(stored_entries(proxy))[len(before) :] == [
        ("user", f"My card is {number}"),
        ("assistant", "Well."),
    ]


def test_an_answer_that_breaks_off_within_a_number_leaves_no_half_of_it(
    proxy: ProxyServer, upstream: FakeUpstream, tmp_path: Path
) -> None:
    upstream.script = lambda _: sse(ROLE + delta(content="Your card is 4111 11"))
    call(proxy, user("Which card do I have?"), stream=True)
    settle(proxy)
    upstream.script = lambda _: sse(stream_of("Sorry."))
    call(
        proxy,
        user("Which card do I have?"),
        assistant_message("Your card is 4111 11"),
        user("Yes?"),
        stream=True,
    )
    assert [m["role"] for m in upstream.last.json["messages"]] == ["user", "assistant", "user"]
    assert texts(stored_entries(proxy))[1] == ("assistant", "Your card is")
    settle(proxy)
    assert b"4111 1" not in bytes_in(tmp_path)


def test_a_result_comes_back_with_its_call_as_the_client_gave_it(
    proxy: ProxyServer, upstream: FakeUpstream
) -> None:
    tool = {
        "id": "c1",
        "type": "function",
        "function": {"name": "find", "arguments": f'{{"mail": "{MAIL}"}}'},
    }
    upstream.script = lambda _: sse(
        ROLE + delta(tool_calls=[{"index": 0, **tool}]) + delta(finish="tool_calls") + DONE
    )
    call(proxy, user(f"Find {MAIL}."), stream=True)
    settle(proxy)
    upstream.script = lambda _: sse(stream_of("Found."))
    result = {"role": "tool", "tool_call_id": "c1", "content": f"Her number is {PHONE}."}
    call(proxy, result, stream=True)
    told = upstream.last.json["messages"]
    assert [m["role"] for m in told] == ["user", "assistant", "tool"]
    assert told[0]["content"] == "Find [email]." and told[2]["content"] == f"Her number is {PHONE}."
    assert told[1]["tool_calls"][0]["function"]["arguments"] == '{"mail": "[email]"}'
    call(proxy, result, assistant_message("Found."), user("Ring her."), stream=True)
    assert ("tool", f"Her number is {PHONE}.") in shown(upstream)
    assert [e.role for e in stored_entries(proxy)] == [
        "user",
        "assistant",
        "tool",
        "assistant",
        "user",
        "assistant",
    ]


def test_a_summary_stands_for_turns_with_numbers_as_for_others(
    serve_on: Serve, upstream: FakeUpstream
) -> None:
    proxy = serve_on(CONFIG)
    window: list[dict[str, Any]] = []
    for n in range(6):
        upstream.script = lambda _, n=n: sse(stream_of(f"Number {n} is {CARD}."))
        window.append(user(f"I am {n}, at {PHONE}."))
        path = "/pipelines/summed/v1/chat/completions"
        proxy.chat(window, headers=WHO, stream=True, path=path).raise_for_status()
        window.append(assistant_message(f"Number {n} is {CARD}."))
        settle(proxy)
        if n >= 3:
            awaited(lambda: proxy.client.get("/v1/memory/sessions/s1/summaries").json()["data"])
    told = next(r for r in reversed(upstream.requests) if r.json.get("stream")).json["messages"]
    (summary,) = [m["content"] for m in told if m["role"] == "system"]
    assert "[card]" in summary and CARD not in summary
    spoken = [m["content"] for m in told if m["role"] != "system"]
    assert 0 < len(spoken) < 11 and spoken == [m["content"] for m in window[11 - len(spoken) : 11]]


def test_a_window_without_answers_keeps_the_clients_words(proxy: ProxyServer, upstream: FakeUpstream) -> None:
    asked: list[dict[str, Any]] = []
    for n in range(4):
        upstream.script = lambda _, n=n: sse(stream_of(f"Answer {n}, {MAIL}."))
        asked.append(user(f"Question {n}: {PHONE}."))
        call(proxy, *asked, stream=True)
        settle(proxy)
    told = shown(upstream)
    assert [content for role, content in told if role == "user"] == [m["content"] for m in asked]
    assert [content for role, content in told if role == "assistant"] == [
        f"Answer {n}, [email]." for n in range(3)
    ]


def test_what_is_edited_on_the_page_is_redacted(
    proxy: ProxyServer, upstream: FakeUpstream, tmp_path: Path
) -> None:
    upstream.script = lambda _: sse(stream_of("Well."))
    call(proxy, user("Hello."), stream=True)
    settle(proxy)
    visit, path = Visit(proxy), "/conversations/s1/edit/0"
    (words,) = re.findall(r'name="shown" value="(\w+)"', visit.page(path))
    assert visit.post(path, seen=path, shown=words, text=f"I am {MAIL}.").status_code == 303
    settle(proxy)
    assert texts(stored_entries(proxy))[0] == ("user", "I am [email].")
    assert traces_of(bytes_in(tmp_path)) == []


def test_the_same_request_again_and_an_older_one_late_change_nothing(
    proxy: ProxyServer, upstream: FakeUpstream
) -> None:
    upstream.script = lambda _: sse(stream_of(f"It is {CARD}."))
    window = [user(f"I am {MAIL}."), assistant_message("Hello."), user(f"My number is {PHONE}.")]
    for _ in range(3):
        call(proxy, *window, stream=True)
    assert texts(stored_entries(proxy)) == [
        ("user", "I am [email]."),
        ("assistant", "Hello."),
        ("user", "My number is [phone]."),
        ("assistant", "It is [card]."),
    ]
    call(proxy, *window, assistant_message(f"It is {CARD}."), user("Yes."), stream=True)
    assert len(stored_entries(proxy)) == 6


def test_what_was_stored_before_goes_when_its_session_is_written_again(
    serve_on: Serve, upstream: FakeUpstream, tmp_path: Path
) -> None:
    upstream.script = lambda _: sse(stream_of(f"Is it {CARD}?"))
    window = [user(f"My card is {CARD}.")]
    before = serve_on(PLAIN)
    call(before, *window, stream=True)
    assert texts(stored_entries(before))[0] == ("user", f"My card is {CARD}.")
    before.__exit__()
    proxy = serve_on()
    upstream.script = lambda _: sse(stream_of("Good."))
    call(proxy, *window, assistant_message(f"Is it {CARD}?"), user("Yes."), stream=True)
    assert texts(stored_entries(proxy)) == [
        ("user", "My card is [card]."),
        ("assistant", "Is it [card]?"),
        ("user", "Yes."),
        ("assistant", "Good."),
    ]
    settle(proxy)
    turns = proxy.client.get("/v1/memory/sessions/s1/turns").json()["data"]
    assert CARD not in str(turns) and len(turns) == 4


def test_what_is_sent_to_models_in_the_background_bears_marks(
    serve_on: Serve, upstream: FakeUpstream
) -> None:
    everything_is_said(serve_on(CONFIG), upstream)
    asked = [r.body.decode() for r in upstream.requests if "<transcript>" in r.body.decode()]
    assert asked and not any(word in body for word in (CARD, MAIL, PHONE, IBAN) for body in asked)
