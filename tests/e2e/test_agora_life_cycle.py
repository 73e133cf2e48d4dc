"""Agora's agents over their whole life: the next call knows the words of the last one."""

import hashlib
import hmac
import itertools
import json
import re
import time
from pathlib import Path
from typing import Any

import pytest

from proxy.errors import ConfigError
from tests.e2e.conftest import Address
from tests.peers.fake_upstream import FakeUpstream, sse, stream_of
from tests.proxy_server import ProxyServer, Serve
from tests.remembering import settle

SECRET = "s3cret"
CONFIG = """
memory: {sessions: "${MEMORY_URL}", deadline: 300ms}
webhooks: {agora: {secret: "${AGORA_WEBHOOK_SECRET:-}"}}
upstreams: {main: {base_url: "${UPSTREAM_BASE_URL}"}}
pipelines:
  default: {upstreams: [main], request: [repair_history, restore_history]}
"""
KEYED = "keys: '${KEYS}'\n" + CONFIG
PATH = "/webhooks/agora"
NUMBERS = itertools.count()
IN_LATIN_1 = b'{"noticeId": "n", "eventType": 103, "payload": {"channel": "caf\xe9"}}'
TOO_DEEP = b'{"noticeId": "n", "eventType": 103, "payload": {"channel": ' + b"[" * 3000 + b"]" * 3000 + b"}}"


@pytest.fixture(params=["sqlite", "memory"])
def url(request: pytest.FixtureRequest, address: Address) -> str:
    return address(request.param)


@pytest.fixture
def proxy(serve: Serve, url: str) -> ProxyServer:
    return serve(CONFIG, MEMORY_URL=url, AGORA_WEBHOOK_SECRET=SECRET)


def notice(event: int, *, name: str = "", clock: float = 0.0, **payload: Any) -> bytes:
    """An event, sent when Agora's clock is so many seconds ahead of ours."""
    return json.dumps(
        {
            "sid": "sid",
            "noticeId": name or f"notice-{next(NUMBERS)}",
            "productId": 17,
            "eventType": event,
            "notifyMs": int((time.time() + clock) * 1000),
            "payload": {"agent_id": "agent-1", "channel": "room-1", "labels": {"campaign": "x"}, **payload},
        }
    ).encode()


def signed(body: bytes, secret: str = SECRET) -> dict[str, str]:
    return {
        "agora-signature": hmac.digest(secret.encode(), body, hashlib.sha1).hex(),
        "agora-signature-v2": hmac.digest(secret.encode(), body, hashlib.sha256).hex(),
    }


def tell(proxy: ProxyServer, body: bytes) -> str:
    headers = {"content-type": "application/json", **signed(body)}
    got = proxy.client.post(PATH, content=body, headers=headers)
    assert got.status_code == 200, got.text
    status: str = got.json()["status"]
    return status


def spoken(role: str, content: str, at: float = 0.0) -> dict[str, Any]:
    start = int((time.time() + at) * 1000)
    return {"role": role, "content": content, "speech_start_ms": start, "speech_end_ms": start + 900}


def user(text: str, turn: int) -> dict[str, Any]:
    return {"role": "user", "content": text, "turn_id": turn, "metadata": {"source": "asr", "user": "ann"}}


def answer_of_turn(text: str, turn: int) -> dict[str, Any]:
    return {"role": "assistant", "content": text, "turn_id": turn, "metadata": {"source": "llm"}}


def prompt(text: str, source: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text, "turn_id": 2, "metadata": {"source": source}}


def call(proxy: ProxyServer, upstream: FakeUpstream, *messages: Any, answer: str = "Hello.") -> None:
    upstream.says(*sse(stream_of(answer)))
    assert proxy.chat(list(messages), channel="room-1", stream=True).status_code == 200
    settle(proxy)


def stored_messages(proxy: ProxyServer, session: str = "room-1", **call: Any) -> list[tuple[str, str]]:
    got = proxy.client.get(f"/v1/memory/sessions/{session}", **call)
    if got.status_code == 404:
        return []
    return [(m["role"], m["content"]) for m in got.json()["contents"]]


def seconds(ago: float = 0.0) -> int:
    return int(time.time() - ago)


# --- who may tell


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"agora-signature": ""},
        {"agora-signature-v2": "0" * 64},
        {"agora-signature": "0" * 40},
        {"agora-signature-v2": "é"},
        signed(b"other"),
        signed(notice(101, name="n"), "wrong"),
    ],
)
def test_a_notice_without_its_signature_changes_nothing(proxy: ProxyServer, headers: dict[str, str]) -> None:
    encoded = {name: value.encode() for name, value in headers.items()}
    got = proxy.client.post(PATH, content=notice(101, name="n"), headers=encoded)
    assert got.status_code == 401
    assert got.json()["error"]["code"] == "invalid_signature"
    assert proxy.client.get("/v1/memory/sessions").json()["data"] == []


def test_the_older_signature_alone_is_enough_and_a_forged_newer_one_is_not(proxy: ProxyServer) -> None:
    body = notice(101)
    older = {"agora-signature": signed(body)["agora-signature"].upper()}
    assert proxy.client.post(PATH, content=body, headers=older).status_code == 200
    forged = {**older, "agora-signature-v2": "0" * 64}
    assert proxy.client.post(PATH, content=body, headers=forged).status_code == 401


def test_without_a_secret_nobody_can_tell_anything(serve: Serve, url: str) -> None:
    proxy = serve(CONFIG, MEMORY_URL=url)
    body = notice(101)
    for headers in ({}, signed(body, "")):
        got = proxy.client.post(PATH, content=body, headers=headers)
        assert (got.status_code, got.json()["error"]["code"]) == (401, "webhooks_off")
        assert "set AGORA_WEBHOOK_SECRET" in got.json()["error"]["message"]


def test_a_notice_needs_no_key_and_belongs_to_the_only_tenant(serve: Serve, url: str) -> None:
    proxy = serve(KEYED, KEYS="one:secret-1", MEMORY_URL=url, AGORA_WEBHOOK_SECRET=SECRET)
    assert tell(proxy, notice(103, contents=[spoken("user", "Hi")])) == "taken"
    key = {"headers": {"Authorization": "Bearer secret-1"}}
    assert stored_messages(proxy, **key) == [("user", "Hi")]


def test_a_name_beyond_this_machine_may_tell(proxy: ProxyServer) -> None:
    body = notice(101)
    got = proxy.client.post(PATH, content=body, headers={**signed(body), "host": "calls.example.org"})
    assert got.status_code == 200


def test_with_several_tenants_the_file_says_whose_calls_are_told_of(serve: Serve, url: str) -> None:
    keys = {"KEYS": "one:secret-1,two:secret-2", "MEMORY_URL": url, "AGORA_WEBHOOK_SECRET": SECRET}
    with pytest.raises(ConfigError, match=r"agora\.tenant"):
        serve(KEYED, **keys)
    with pytest.raises(ConfigError, match=r"agora\.tenant"):
        serve(KEYED.replace(":-}", ':-}", tenant: "three'), **keys)
    proxy = serve(KEYED.replace(":-}", ':-}", tenant: "two'), **keys)
    tell(proxy, notice(103, contents=[spoken("user", "Hi")]))
    assert stored_messages(proxy, headers={"Authorization": "Bearer secret-1"}) == []
    assert stored_messages(proxy, headers={"Authorization": "Bearer secret-2"}) == [("user", "Hi")]


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{", b'{"noticeId": 1}', b"\xff", b"[" * 100_000, IN_LATIN_1, TOO_DEEP]
)
def test_what_is_no_notice_is_refused(proxy: ProxyServer, body: bytes) -> None:
    assert proxy.client.post(PATH, content=body, headers=signed(body)).status_code == 400


@pytest.mark.parametrize("event", [104, 110, 111, 112, 201, 1001, 999])
def test_other_events_are_answered_and_ignored(proxy: ProxyServer, event: int) -> None:
    body = notice(event, errors=[{"module": "llm"}], contents=[spoken("user", "Hi")])
    assert tell(proxy, body) == "ignored"
    assert stored_messages(proxy) == []


@pytest.mark.parametrize(
    "payload",
    [{"channel": None}, {"channel": "a\nb"}, {"contents": "Hi"}, {"contents": None}, {"channel": ["x"]}],
)
def test_a_notice_about_nothing_is_ignored(proxy: ProxyServer, payload: dict[str, Any]) -> None:
    assert tell(proxy, notice(103, **payload)) == "ignored"


@pytest.mark.parametrize("item", [None, "Hi", {"role": 1}, {"role": "user", "content": 7}, {"content": "Hi"}])
def test_an_odd_line_of_a_history_costs_that_line_alone(proxy: ProxyServer, item: Any) -> None:
    tell(proxy, notice(103, contents=[item, spoken("user", "Hi")]))
    assert stored_messages(proxy) == [("user", "Hi")]


@pytest.mark.parametrize("half", ["\ud83d", "\udc00 and", "\ud83d\ud83d"])
def test_half_a_character_costs_that_character_alone(proxy: ProxyServer, half: str) -> None:
    whole, cut = spoken("user", "Hi 🎈"), spoken("assistant", f"Hello {half}")
    assert tell(proxy, notice(103, contents=[whole, cut], **{half: "a"})) == "taken"
    assert stored_messages(proxy) == [
        ("user", "Hi 🎈"),
        ("assistant", "Hello " + re.sub("[\ud800-\udfff]", "\ufffd", half)),
    ]


@pytest.mark.parametrize("event", [101, 102, 103, 104])
def test_a_payload_of_null_is_an_empty_one(proxy: ProxyServer, event: int) -> None:
    body = json.dumps({"noticeId": "n", "eventType": event, "payload": None}).encode()
    assert tell(proxy, body) == "ignored"


@pytest.mark.parametrize("event", [101, 102, 103])
def test_a_notice_need_not_say_when_it_was_sent(proxy: ProxyServer, event: int) -> None:
    fields = json.loads(
        notice(event, start_ts=seconds(9), stop_ts=seconds(), contents=[spoken("user", "Hi")])
    )
    del fields["notifyMs"]
    assert tell(proxy, json.dumps(fields).encode()) == "taken"


def test_a_notice_may_be_numbered(proxy: ProxyServer) -> None:
    payload = {"agent_id": "a", "channel": "room-1", "contents": [spoken("user", "Hi")]}
    body = json.dumps({"noticeId": 7, "eventType": 103, "payload": payload}).encode()
    assert [tell(proxy, body), tell(proxy, body)] == ["taken", "taken"]
    assert stored_messages(proxy) == [("user", "Hi")]


# --- a life begins and ends


def test_who_joins_again_begins_a_new_life(proxy: ProxyServer, upstream: FakeUpstream) -> None:
    tell(proxy, notice(101, agent_id="a", start_ts=seconds(100)))
    call(proxy, upstream, user("I am Ann.", 1))
    tell(proxy, notice(102, agent_id="a", start_ts=seconds(100), stop_ts=seconds()))
    tell(proxy, notice(101, agent_id="b", start_ts=seconds()))
    call(proxy, upstream, user("Who am I?", 1))
    assert upstream.last.json["messages"] == [{"role": "user", "content": "Who am I?"}]
    assert [text for _, text in stored_messages(proxy)] == ["I am Ann.", "Hello.", "Who am I?", "Hello."]


def test_another_agent_that_joins_begins_a_call_though_no_end_was_told(
    proxy: ProxyServer, upstream: FakeUpstream
) -> None:
    tell(proxy, notice(101, agent_id="a", start_ts=seconds(100)))
    call(proxy, upstream, user("I am Ann.", 1))
    tell(proxy, notice(101, agent_id="b"))
    call(proxy, upstream, user("Who am I?", 2))
    assert shown(upstream) == ["Who am I?"]
    tell(proxy, notice(102, agent_id="a"))  # of a call that is over
    call(proxy, upstream, user("Tell me.", 3))
    assert shown(upstream) == ["Who am I?", "Hello.", "Tell me."]


@pytest.mark.parametrize("named", [{}, {"agent_id": None}, {"agent_id": ""}])
def test_a_beginning_without_its_time_is_now(
    proxy: ProxyServer, upstream: FakeUpstream, named: dict[str, Any]
) -> None:
    call(proxy, upstream, user("I am Ann.", 1))
    tell(proxy, notice(101, **named))
    call(proxy, upstream, user("Who am I?", 2))
    assert shown(upstream) == ["I am Ann.", "Hello.", "Who am I?"]


def test_agents_without_a_name_are_not_one_agent(proxy: ProxyServer, upstream: FakeUpstream) -> None:
    nameless = {"agent_id": None}
    call(proxy, upstream, user("I am Ann.", 1))
    tell(proxy, notice(102, start_ts=seconds(100), stop_ts=seconds(), **nameless))
    call(proxy, upstream, user("Who am I?", 1))
    tell(proxy, notice(102, start_ts=seconds(1), stop_ts=seconds(), **nameless))
    call(proxy, upstream, user("Tell me.", 2))
    assert shown(upstream) == ["Tell me."]


def test_an_end_that_is_told_again_does_not_end_the_next_call(
    proxy: ProxyServer, upstream: FakeUpstream
) -> None:
    end = notice(102, start_ts=seconds(100), stop_ts=seconds())  # nothing was said until then
    tell(proxy, end)
    call(proxy, upstream, user("I am Ann.", 1))
    tell(proxy, end)
    call(proxy, upstream, user("Who am I?", 2))
    assert shown(upstream) == ["I am Ann.", "Hello.", "Who am I?"]


def test_a_notice_that_comes_twice_or_late_splits_no_call(proxy: ProxyServer, upstream: FakeUpstream) -> None:
    joined = notice(101, agent_id="a", start_ts=seconds(100))
    call(proxy, upstream, user("I am Ann.", 1))
    for body in (joined, joined, notice(101, agent_id="a", start_ts=seconds(100))):
        tell(proxy, body)
    call(proxy, upstream, user("Who am I?", 2))
    assert [m["content"] for m in upstream.last.json["messages"]] == ["I am Ann.", "Hello.", "Who am I?"]


def test_an_end_that_is_told_late_splits_no_later_call(proxy: ProxyServer, upstream: FakeUpstream) -> None:
    call(proxy, upstream, user("I am Ann.", 1))
    tell(proxy, notice(102, agent_id="old", start_ts=seconds(900), stop_ts=seconds(600)))
    call(proxy, upstream, user("Who am I?", 2))
    assert [m["content"] for m in upstream.last.json["messages"]] == ["I am Ann.", "Hello.", "Who am I?"]


def test_a_state_is_the_clients_alone(proxy: ProxyServer, upstream: FakeUpstream) -> None:
    joined = notice(101, agent_id="a", start_ts=seconds(-100))  # by a clock that is ahead
    path = "/v1/memory/sessions/room-1/state"
    tell(proxy, joined)
    call(proxy, upstream, user("I am Ann.", 1))
    assert proxy.client.get(path).json() == {}
    given = {"plan": "small", "agora": {"notices": 1, "lives": []}}
    assert proxy.client.put(path, json=given).json() == given
    tell(proxy, joined)
    tell(proxy, notice(104))
    call(proxy, upstream, user("Who am I?", 2))
    assert [m["content"] for m in upstream.last.json["messages"]] == ["I am Ann.", "Hello.", "Who am I?"]
    tell(proxy, notice(102, agent_id="a", start_ts=seconds(-100), stop_ts=seconds(-100)))
    assert proxy.client.get(path).json() == given


def test_a_session_that_was_exported_knows_its_notices(proxy: ProxyServer, upstream: FakeUpstream) -> None:
    path = "/v1/memory/sessions/room-1"
    joined = notice(101, agent_id="a", start_ts=seconds(-100))
    tell(proxy, joined)
    call(proxy, upstream, user("I am Ann.", 1))
    exported = proxy.client.get(path).json()
    assert proxy.client.put(path, json=exported).status_code == 200
    tell(proxy, joined)
    call(proxy, upstream, user("Who am I?", 2))
    assert [m["content"] for m in upstream.last.json["messages"]] == ["I am Ann.", "Hello.", "Who am I?"]


# --- clocks that differ


@pytest.fixture(params=[-300, -40, -15, 15, 40, 300])
def clock(request: pytest.FixtureRequest) -> int:
    """How many seconds Agora's clock is ahead of ours."""
    return int(request.param)


def shown(upstream: FakeUpstream) -> list[str]:
    return [message["content"] for message in upstream.last.json["messages"]]


@pytest.mark.parametrize("event", [102, 103])
@pytest.mark.parametrize("joined", [True, False])
def test_an_end_ends_the_call_whatever_the_clocks_show(
    proxy: ProxyServer, upstream: FakeUpstream, clock: int, event: int, *, joined: bool
) -> None:
    start = seconds(60 - clock)
    if joined:
        tell(proxy, notice(101, clock=clock, start_ts=start))
    call(proxy, upstream, user("I am Ann.", 1), answer="Hello, Ann.")
    lines = [spoken("user", "I am Ann.", clock - 3), spoken("assistant", "Hello, Ann.", clock - 2)]
    ending = [*lines, spoken("user", "Bye.", clock - 1)]
    more = {"contents": ending} if event == 103 else {}
    tell(proxy, notice(event, clock=clock, start_ts=start, stop_ts=seconds(-clock), **more))
    call(proxy, upstream, user("Who am I?", 2))
    assert shown(upstream) == ["Who am I?"]
    texts = ["I am Ann.", "Hello, Ann.", *(["Bye."] if event == 103 else []), "Who am I?", "Hello."]
    assert [text for _, text in stored_messages(proxy)] == texts


@pytest.mark.parametrize("off", [-15, 15])
@pytest.mark.parametrize("event", [102, 103])
@pytest.mark.parametrize("joined", [True, False])
def test_an_end_whose_times_alone_are_off_ends_the_call(
    proxy: ProxyServer, upstream: FakeUpstream, off: int, event: int, *, joined: bool
) -> None:
    start = seconds(60 - off)
    if joined:
        tell(proxy, notice(101, start_ts=start))
    call(proxy, upstream, user("I am Ann.", 1), answer="Hello, Ann.")
    contents = [spoken("user", "I am Ann.", off - 3), spoken("user", "Bye.", off - 1)]
    tell(proxy, notice(event, start_ts=start, stop_ts=seconds(-off), contents=contents))
    call(proxy, upstream, user("Who am I?", 2))
    assert shown(upstream) == ["Who am I?"]


def test_a_beginning_that_is_told_late_splits_no_call(
    proxy: ProxyServer, upstream: FakeUpstream, clock: int
) -> None:
    call(proxy, upstream, user("I am Ann.", 1))
    tell(proxy, notice(101, clock=clock, start_ts=seconds(20 - clock)))
    call(proxy, upstream, user("Who am I?", 2))
    assert shown(upstream) == ["I am Ann.", "Hello.", "Who am I?"]


def test_a_deletion_holds_whatever_the_clocks_show(
    proxy: ProxyServer, upstream: FakeUpstream, clock: int
) -> None:
    call(proxy, upstream, user("I am Ann.", 1))
    assert proxy.client.delete("/v1/memory/sessions/room-1").status_code == 204
    contents = [spoken("user", "I am Ann.", clock - 80)]
    body = notice(103, clock=clock, start_ts=seconds(100 - clock), stop_ts=seconds(-clock), contents=contents)
    assert tell(proxy, body) == "ignored"
    assert stored_messages(proxy) == []


@pytest.mark.parametrize(
    ("event", "start", "stop", "status"),
    [
        (101, 100, None, "ignored"),
        (101, None, None, "ignored"),  # it says nothing that a session is needed for
        (102, 100, 50, "ignored"),
        (102, 100, None, "ignored"),
        (102, None, 100, "ignored"),
        (102, 100, -5, "ignored"),  # its agent left after the deletion
        (103, 100, -5, "ignored"),  # its first words may be older
        (103, 100, None, "ignored"),
        (103, None, 100, "ignored"),
        (103, None, None, "taken"),
    ],
)
def test_a_deletion_holds_for_all_that_was_before_it(
    proxy: ProxyServer, upstream: FakeUpstream, event: int, start: int | None, stop: int | None, status: str
) -> None:
    call(proxy, upstream, user("I am Ann.", 1))
    assert proxy.client.delete("/v1/memory/sessions/room-1").status_code == 204
    times = {name: seconds(ago) for name, ago in (("start_ts", start), ("stop_ts", stop)) if ago is not None}
    body = notice(event, **times, contents=[spoken("user", "I am Bob.")])
    assert tell(proxy, body) == status
    found = 200 if status == "taken" else 404
    assert proxy.client.get("/v1/memory/sessions/room-1").status_code == found


@pytest.mark.parametrize("start", [123, None, "1790000000"])
def test_a_history_with_an_implausible_start_makes_no_session_of_a_deleted_one(
    proxy: ProxyServer, upstream: FakeUpstream, start: object
) -> None:
    call(proxy, upstream, user("I am Ann.", 1))
    assert proxy.client.delete("/v1/memory/sessions/room-1").status_code == 204
    history = [spoken("user", "I am Ann.", -80), spoken("assistant", "Hello.", -79)]
    assert tell(proxy, notice(103, start_ts=start, stop_ts=start, contents=history)) == "ignored"
    assert proxy.client.get("/v1/memory/sessions/room-1").status_code == 404


@pytest.mark.parametrize("ago", [12, 90, 3600])
def test_a_call_that_was_never_seen_is_remembered_before_the_one_that_goes_on(
    proxy: ProxyServer, upstream: FakeUpstream, ago: int
) -> None:
    first = user("I am Ann.", 1)
    call(proxy, upstream, first, answer="Hello, Ann.")
    history = [
        spoken("user", "My boat is called Gerda.", -ago - 20),
        spoken("assistant", "A fine name for a boat.", -ago - 19),
    ]
    told = notice(103, agent_id="earlier", start_ts=seconds(ago + 30), stop_ts=seconds(ago), contents=history)
    assert [tell(proxy, told), tell(proxy, told)] == ["taken", "taken"]
    texts = ["My boat is called Gerda.", "A fine name for a boat.", "I am Ann.", "Hello, Ann."]
    assert [text for _, text in stored_messages(proxy)] == texts

    call(proxy, upstream, first, answer_of_turn("Hello, Ann.", 1), user("Who am I?", 2))
    assert shown(upstream) == ["I am Ann.", "Hello, Ann.", "Who am I?"]
    call(proxy, upstream, user("And now?", 3))
    assert shown(upstream) == ["I am Ann.", "Hello, Ann.", "Who am I?", "Hello.", "And now?"]
    assert [text for _, text in stored_messages(proxy)] == [
        *texts,
        "Who am I?",
        "Hello.",
        "And now?",
        "Hello.",
    ]
    settle(proxy)
    query = {"user": "ann", "query": "boat Gerda", "limit": 5}
    if proxy.app.memory and proxy.app.memory.archiving:
        found = proxy.client.post("/v1/memory/search", json=query).json()["results"]
        assert "My boat is called Gerda." in [one["text"] for one in found]


# --- what was said is told at the end


def test_a_history_tells_of_a_call_that_nobody_saw(proxy: ProxyServer) -> None:
    document = Path(__file__).parents[1] / "golden/agora_event103.json"
    tell(proxy, notice(103, **json.loads(document.read_text())))
    got = proxy.client.get("/v1/memory/sessions/room-1").json()["contents"]
    assert [m["content"][:5] for m in got] == ["Hello", "Sure,", "I'd l", "Your ", "[thin"]
    assert got[0]["timestamp"] == 1715000001200
    assert "metadata" not in got[0]
    assert got[-1]["metadata"]["source"] == "command"


def test_a_history_confirms_what_was_seen_and_adds_the_rest_once(proxy, upstream) -> None:
    start = seconds(100)
    tell(proxy, notice(101, start_ts=start))
    first = user("I am Ann.", 1)
    call(proxy, upstream, first, answer="Hello, Ann.")
    call(
        proxy,
        upstream,
        first,
        answer_of_turn("Hello, Ann.", 1),
        user("A story!", 2),
        answer="Once upon a time in a land.",
    )
    history = [
        spoken("assistant", "Welcome!", -90),
        spoken("user", "I am Ann.", -80),
        spoken("assistant", "Hello, Ann.", -70),
        spoken("user", "A story!", -60),
        spoken("assistant", "Once upon", -50),
        spoken("user", "Enough, bye.", -40),
    ]
    told = notice(103, start_ts=start, stop_ts=seconds(), contents=history)
    again = notice(103, start_ts=start, stop_ts=seconds(), contents=history)
    for body in (told, told, again):
        tell(proxy, body)
    tell(proxy, notice(102, start_ts=start, stop_ts=seconds()))
    tell(proxy, notice(103, start_ts=start, stop_ts=seconds(), contents=history))
    got = proxy.client.get("/v1/memory/sessions/room-1").json()["contents"]
    assert [m["content"] for m in got] == [line["content"] for line in history]
    assert got[1]["metadata"]["user"] == "ann"
    assert got[4]["metadata"]["interrupted"]
    assert got[4]["metadata"]["original"] == "Once upon a time in a land."


def test_a_history_that_comes_after_the_next_call_began_goes_to_its_own(proxy, upstream) -> None:
    start = seconds(100)
    tell(proxy, notice(101, agent_id="a", start_ts=start))
    call(proxy, upstream, user("I am Ann.", 1), answer="Hello, Ann.")
    tell(proxy, notice(101, agent_id="b", start_ts=seconds()))
    call(proxy, upstream, user("Me again.", 1), answer="Welcome back.")
    history = [
        spoken("user", "I am Ann.", -80),
        spoken("assistant", "Hello, Ann.", -70),
        spoken("user", "Bye.", -60),
    ]
    for _ in range(2):
        tell(proxy, notice(103, agent_id="a", start_ts=start, stop_ts=seconds(), contents=history))
    assert [text for _, text in stored_messages(proxy)] == [
        "I am Ann.",
        "Hello, Ann.",
        "Bye.",
        "Me again.",
        "Welcome back.",
    ]
    call(proxy, upstream, user("Me again.", 1), answer_of_turn("Welcome back.", 1), user("And?", 2))
    assert [m["content"] for m in upstream.last.json["messages"]] == ["Me again.", "Welcome back.", "And?"]


def test_what_the_engine_said_by_itself_is_told_of_as_nobodys_words(
    proxy: ProxyServer, upstream: FakeUpstream
) -> None:
    start, first = seconds(100), user("I am Ann.", 1)
    tell(proxy, notice(101, start_ts=start))
    call(proxy, upstream, first, answer="Hello, Ann.")
    shown = [first, answer_of_turn("Hello, Ann.", 1), prompt("Are you still there?", "silence")]
    failed = [user("A story!", 2), prompt("Please try again later.", "llm_failure")]
    call(proxy, upstream, *shown, *failed, user("A story, please!", 3), answer="Once upon a time.")
    history = [
        spoken("user", "I am Ann.", -80),
        spoken("assistant", "Hello, Ann.", -70),
        spoken("assistant", "Are you still there?", -60),
        spoken("user", "A story!", -50),
        spoken("assistant", "Please try again later.", -45),
        spoken("user", "A story, please!", -40),
        spoken("assistant", "Once upon a time.", -30),
        spoken("assistant", "Are you still there?", -20),
    ]
    tell(proxy, notice(103, start_ts=start, stop_ts=seconds(), contents=history))
    texts = ["I am Ann.", "Hello, Ann.", "A story!", "A story, please!", "Once upon a time."]
    assert [text for _, text in stored_messages(proxy)] == texts


def test_what_was_forgotten_is_not_told_of_again(proxy: ProxyServer, upstream: FakeUpstream) -> None:
    call(proxy, upstream, user("I am Ann.", 1))
    history = [spoken("user", "I am Ann.", -80)]
    body = notice(103, start_ts=seconds(100), stop_ts=seconds(1), contents=history)
    assert proxy.client.delete("/v1/memory/sessions/room-1").status_code == 204
    assert tell(proxy, body) == "ignored"
    assert stored_messages(proxy) == []


@pytest.mark.parametrize("path", ["sessions/room-1", "users/ann"])
def test_a_history_of_an_agent_that_outlived_a_deletion_brings_nothing_back(
    proxy: ProxyServer, upstream: FakeUpstream, path: str
) -> None:
    call(proxy, upstream, user("I am Ann.", 1))
    assert proxy.client.delete(f"/v1/memory/{path}").status_code == 204
    history = [spoken("user", "I am Ann.", -80)]
    body = notice(103, start_ts=seconds(100), stop_ts=seconds(-1), contents=history)
    assert tell(proxy, body) == "ignored"
    assert stored_messages(proxy) == []


def test_of_a_call_that_goes_on_after_its_deletion_the_rest_is_remembered(
    proxy: ProxyServer, upstream: FakeUpstream
) -> None:
    call(proxy, upstream, user("I am Ann.", 1))
    assert proxy.client.delete("/v1/memory/sessions/room-1").status_code == 204
    call(proxy, upstream, user("Goodbye.", 2))
    history = [spoken("user", "I am Ann.", -80), spoken("user", "Goodbye.", -1)]
    tell(proxy, notice(103, start_ts=seconds(100), stop_ts=seconds(-1), contents=history))
    assert stored_messages(proxy) == [("user", "Goodbye."), ("assistant", "Hello.")]


# --- from short-term to long-term memory


def test_the_next_agent_can_be_given_what_was_said(proxy: ProxyServer, upstream: FakeUpstream) -> None:
    path = "/v1/memory/users/ann/system_messages"
    assert proxy.client.get(path).json() == []
    call(proxy, upstream, user("I like <jazz>.", 1), answer="Noted.")
    [message] = proxy.client.get(path).json()
    assert message["role"] == "system"
    lines = message["content"].splitlines()
    assert lines[2:] == ["- user: I like \u2039jazz\u203a.", "- assistant: Noted.", "</last_conversation>"]
    assert proxy.client.get("/v1/memory/users/bob/system_messages").json() == []


def test_what_a_program_put_in_is_nothing_that_the_user_said(proxy: ProxyServer) -> None:
    history = [
        spoken("user", "I like jazz.", -90),
        spoken("assistant", "Noted.", -80),
        {"role": "user", "content": "[think API injected] User level: VIP"},
        {"role": "assistant", "content": "Welcome to the lounge."},
    ]
    tell(proxy, notice(103, start_ts=seconds(100), stop_ts=seconds(1), contents=history))
    settle(proxy)
    window = [user("And blues.", 5) | {"user": "ann"}]
    proxy.chat(window, channel="room-1", user="ann")
    settle(proxy)
    [message] = proxy.client.get("/v1/memory/users/ann/system_messages").json()
    assert "I like jazz." in message["content"] and "Welcome to the lounge." in message["content"]
    assert "VIP" not in message["content"]
    assert ("user", "[think API injected] User level: VIP") in stored_messages(proxy)


def test_another_tenant_knows_nothing_of_the_user(serve: Serve, url: str, upstream: FakeUpstream) -> None:
    proxy = serve(KEYED, KEYS="one:secret-1,two:secret-2", MEMORY_URL=url)
    headers = {"Authorization": "Bearer secret-1"}
    proxy.chat([user("I am Ann.", 1)], channel="room-1", headers=headers)
    settle(proxy)
    path = "/v1/memory/users/ann/system_messages"
    assert len(proxy.client.get(path, headers=headers).json()) == 1
    assert proxy.client.get(path, headers={"Authorization": "Bearer secret-2"}).json() == []
