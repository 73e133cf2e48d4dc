"""The next call of a user, under any session id and on every store, gets notes on the last one."""

import hashlib
import hmac
import json
import re
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from proxy.memory.stores.store import Key
from tests.e2e.conftest import Address
from tests.long_call import settle, stream_text
from tests.peers.fake_upstream import FakeUpstream, Received, Step, answer, completion, sse, stream_of
from tests.proxy_server import ProxyServer, Serve
from tests.serving_process import LISTEN, ServingProcess
from tests.waiting import awaited

CONFIG = """
memory:
  sessions: "${MEMORY_URL}"
  deadline: 2s
  call_pause: PAUSE
  summaries: {upstream: main, model: notes, timeout: 5s}
webhooks: {agora: {secret: key}}
upstreams: {main: {base_url: "${UPSTREAM_BASE_URL}"}}
pipelines:
  default:
    upstreams: [main]
    request: [repair_history, restore_history, inject_summaries, inject_last_call]
"""
PROMISE = "A technician comes on Friday at 9, promised to Ann for 12 Elm Street."
TALK = (
    ("My router at 12 Elm Street is broken.", "I am sorry to hear that."),
    ("Can somebody come, please?", "A technician comes on Friday at 9, I promise."),
    ("Thank you.", "You are welcome."),
)
KEY = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="
SYSTEM = {"role": "system", "content": "Be brief."}
BUSY = answer({"error": {"message": "Busy"}}, 503)


@pytest.fixture(params=["sqlite", "redis", "postgresql", "memory"])
def url(request: pytest.FixtureRequest, address: Address) -> str:
    return address(request.param)


def notes(_: Received) -> Iterable[Step]:
    return answer(completion(PROMISE))


class Model:
    """Answers as the talk goes, and writes notes."""

    def __init__(self, upstream: FakeUpstream, notes: Callable[[Received], Iterable[Step]] = notes) -> None:
        self.upstream = upstream
        self.notes = notes
        upstream.script = self

    def __call__(self, request: Received) -> Iterable[Step]:
        if request.json["model"] == "notes":
            return self.notes(request)
        newest = request.json["messages"][-1]["content"]
        return sse(stream_of(dict(TALK).get(newest, "Yes.")))

    @property
    def prompts(self) -> list[list[dict[str, Any]]]:
        bodies = [r.json for r in list(self.upstream.requests) if r.method == "POST"]
        return [body["messages"] for body in bodies if body["model"] != "notes"]

    @property
    def asked_for_notes(self) -> list[str]:
        bodies = [r.json for r in list(self.upstream.requests) if r.method == "POST"]
        return [body["messages"][-1]["content"] for body in bodies if body["model"] == "notes"]


class Phone:
    """Calls of one user, each under a session id of its own."""

    def __init__(self, proxy: ProxyServer, model: Model, user: str = "ann", *, named: bool = False) -> None:
        self.proxy, self.model, self.user = proxy, model, user
        self.marks = {"metadata": {"user": user}} if named else {}
        self.lines: list[dict[str, Any]] = []
        self.session, self.system = "", [SYSTEM]

    def begin(self, session: str, *system: dict[str, Any]) -> None:
        self.session, self.lines, self.system = session, [], [*system, SYSTEM]

    def say(self, words: str) -> list[dict[str, Any]]:
        """One turn; the prompt that the model was shown."""
        self.lines.append({"role": "user", "content": words, **self.marks})
        got = self.proxy.chat(
            [*self.system, *self.lines],
            headers={"X-Session-Id": self.session, "X-User-Id": self.user},
            stream=True,
        )
        assert got.status_code == 200, got.text
        assert "x-turnkeeper-degraded" not in got.headers, got.headers
        self.lines.append({"role": "assistant", "content": stream_text(got.text)})
        self.proxy.run(self.proxy.app.memory.recorder.drain())  # type: ignore[union-attr]
        return self.model.prompts[-1]

    def talk(self, session: str) -> None:
        self.begin(session)
        for words, _ in TALK:
            self.say(words)

    def calls(self) -> list[dict[str, Any]]:
        export = self.proxy.client.get(f"/v1/memory/users/{self.user}/export").json()
        return list(export.get("calls", []))

    def listed(self) -> None:
        """Waits until the call that goes on is listed."""
        key = self.session
        awaited(lambda: self.proxy.run(_is_listed(self.proxy.app.memory, key)))

    def noted(self) -> None:
        """Waits until notes on a call are there: a model that failed is asked again after some seconds."""
        awaited(lambda: any(PROMISE in line for call in self.calls() for line in call["lines"]), 60)


async def _is_listed(memory: Any, session: str) -> bool:
    stored = await memory.store.load(Key("default", session), background=True)
    return bool(stored and stored.session.noted_until.call == stored.session.entries[-1].call)


def last_call_text(prompt: Iterable[dict[str, Any]]) -> str:
    """Returns the text about the last call in a prompt."""
    text = "\n".join(message["content"] for message in prompt)
    blocks = re.findall(r"<last_conversation>\n(.*?)\n</last_conversation>", text, re.DOTALL)
    assert len(blocks) <= 1, text
    return blocks[0] if blocks else ""


def test_the_next_call_tells_what_was_promised_once_and_the_same_to_its_end(
    serve: Serve, upstream: FakeUpstream, url: str
) -> None:
    model = Model(upstream)
    phone = Phone(serve(CONFIG.replace("PAUSE", "100ms"), MEMORY_URL=url), model)
    phone.talk("first")
    phone.noted()
    phone.begin("second")
    prompts = [phone.say(words) for words in ("Hello, me again.", "When is it?", "And where?")]
    for prompt in prompts:
        assert prompt[0] == SYSTEM
        assert PROMISE in last_call_text(prompt[1:2])
        assert sum(PROMISE in message["content"] for message in prompt) == 1
        assert prompt[1] == prompts[0][1]


def test_no_other_user_is_told(serve: Serve, upstream: FakeUpstream, url: str) -> None:
    model = Model(upstream)
    proxy = serve(CONFIG.replace("PAUSE", "100ms"), MEMORY_URL=url)
    ann, bob = Phone(proxy, model), Phone(proxy, model, "bob")
    ann.talk("first")
    ann.noted()
    bob.begin("second")
    assert last_call_text(bob.say("Hello?")) == ""


@pytest.mark.parametrize("failing", [True, False], ids=["no model answers", "the model has yet to answer"])
def test_until_notes_are_there_the_last_lines_stand_in(
    serve: Serve, upstream: FakeUpstream, url: str, *, failing: bool
) -> None:
    model = Model(upstream, lambda _: BUSY)
    phone = Phone(serve(CONFIG.replace("PAUSE", "100ms" if failing else "1h"), MEMORY_URL=url), model)
    phone.talk("first")
    phone.listed()
    phone.begin("second")
    first = phone.say("Hello, me again.")
    assert "assistant: A technician comes on Friday at 9, I promise." in last_call_text(first)
    model.notes = notes
    if failing:
        phone.noted()
    assert last_call_text(phone.say("When is it?")) == last_call_text(first)


def test_beginning_another_call_ends_the_one_before(serve: Serve, upstream: FakeUpstream, url: str) -> None:
    phone = Phone(serve(CONFIG.replace("PAUSE", "1h"), MEMORY_URL=url), Model(upstream))
    phone.talk("first")
    phone.listed()
    assert not phone.model.asked_for_notes
    phone.begin("second")
    phone.say("Hello, me again.")
    phone.noted()
    assert len(phone.model.asked_for_notes) == 1


def test_a_model_that_writes_no_notes_keeps_no_call_from_being_listed(
    serve: Serve, upstream: FakeUpstream, url: str
) -> None:
    model = Model(upstream, lambda _: answer(completion("Yes.")))
    phone = Phone(serve(CONFIG.replace("PAUSE", "1h"), MEMORY_URL=url), model)
    phone.talk("first")
    phone.listed()
    for session in ("second", "third"):
        phone.begin(session)
        phone.say("Hello, me again.")
        phone.listed()
    awaited(lambda: model.asked_for_notes)


def test_a_call_ends_when_its_agent_leaves(serve: Serve, upstream: FakeUpstream, url: str) -> None:
    phone = Phone(serve(CONFIG.replace("PAUSE", "1h"), MEMORY_URL=url), Model(upstream))
    phone.talk("room")
    phone.listed()
    payload = {"channel": "room", "agent_id": "a1", "start_ts": int(time.time()) - 9}
    payload["stop_ts"] = int(time.time()) + 1
    body = json.dumps({"noticeId": "n1", "eventType": 102, "payload": payload}).encode()
    signature = hmac.digest(b"key", body, hashlib.sha256).hex()
    got = phone.proxy.client.post("/webhooks/agora", content=body, headers={"agora-signature-v2": signature})
    assert got.json() == {"status": "taken"}
    phone.noted()


def test_another_process_tells_it_too(serve: Serve, upstream: FakeUpstream, address: Address) -> None:
    url, model = address("redis"), Model(upstream)
    phone = Phone(serve(CONFIG.replace("PAUSE", "100ms"), MEMORY_URL=url), model)
    phone.talk("first")
    phone.noted()
    other = Phone(serve(CONFIG.replace("PAUSE", "1h"), MEMORY_URL=url), model)
    other.begin("second")
    assert PROMISE in last_call_text(other.say("Hello, me again."))


def test_a_tree_of_processes_tells_it_after_a_restart_too(upstream: FakeUpstream, tmp_path: Path) -> None:
    model = Model(upstream)
    own = {"UPSTREAM_BASE_URL": upstream.url, "MEMORY_URL": f"sqlite:{tmp_path / 'memory.db'}"}
    config = LISTEN + CONFIG.replace("PAUSE", "100ms")

    def noted(serving: ServingProcess) -> bool:
        return PROMISE in serving.client.get("/v1/memory/users/ann/export").text

    with ServingProcess(tmp_path, config, **own) as serving:
        for words, _ in TALK:
            assert serving.chat(words, "first", user="ann").status_code == 200
        awaited(lambda: noted(serving), 30)
    with ServingProcess(tmp_path, config, **own) as serving:
        for words in ("Hello, me again.", "When is it?"):
            assert serving.chat(words, "second", user="ann").status_code == 200
    assert [PROMISE in last_call_text(prompt) for prompt in model.prompts[-2:]] == [True, True]


def test_a_profile_is_told_in_each_call_and_in_system_messages(
    serve: Serve, upstream: FakeUpstream, url: str
) -> None:
    phone = Phone(serve(CONFIG.replace("PAUSE", "1h"), MEMORY_URL=url), Model(upstream))
    path, text = "/v1/memory/users/ann/profile", "Gold member since 2019.\nSpeak slowly, </profile> please."
    client = phone.proxy.client
    assert client.get(path).status_code == 404
    assert client.put(path, json={"text": text}).json() == {"text": text}
    phone.begin("first")
    prompts = [phone.say(words) for words, _ in TALK]
    for prompt in prompts:
        assert "Gold member since 2019.\nSpeak slowly, \u2039/profile\u203a please." in prompt[1]["content"]
        assert prompt[:2] == prompts[0][:2]
    given = client.get("/v1/memory/users/ann/system_messages").json()
    assert "Gold member" in given[0]["content"]
    phone.begin("second", given[0])
    assert sum("Gold member" in message["content"] for message in phone.say("Hello.")) == 1
    assert client.get("/v1/memory/users/ann/export").json()["profile"] == [text]
    assert client.delete(path).status_code == 204
    phone.begin("third")
    assert "Gold member" not in str(phone.say("Hello."))


def test_a_short_call_does_not_displace_a_longer_one(serve: Serve, upstream: FakeUpstream, url: str) -> None:
    phone = Phone(serve(CONFIG.replace("PAUSE", "100ms"), MEMORY_URL=url), Model(upstream))
    phone.talk("first")
    phone.noted()
    phone.begin("second")
    phone.say("Hello? The line is bad.")
    awaited(lambda: len(phone.calls()) == 2)
    phone.begin("third")
    assert PROMISE in last_call_text(phone.say("Hello, me again."))


def test_a_session_that_returns_tells_its_own_calls_itself(
    serve: Serve, upstream: FakeUpstream, url: str
) -> None:
    phone = Phone(serve(CONFIG.replace("PAUSE", "100ms"), MEMORY_URL=url), Model(upstream))
    phone.talk("room")
    phone.noted()
    phone.say("Are you still there?")
    phone.begin("room")
    prompt = phone.say("Hello, me again, on a new line.")
    assert last_call_text(prompt) == ""
    assert sum("I promise" in message["content"] for message in prompt) == 1


def test_what_system_messages_tell_is_not_told_again(serve: Serve, upstream: FakeUpstream, url: str) -> None:
    phone = Phone(serve(CONFIG.replace("PAUSE", "100ms"), MEMORY_URL=url), Model(upstream))
    phone.talk("first")
    phone.noted()
    given = phone.proxy.client.get("/v1/memory/users/ann/system_messages").json()
    assert "I promise" in last_call_text(given)
    phone.begin("second", *given)
    prompt = phone.say("Hello, me again.")
    assert last_call_text(prompt) == last_call_text(given)


def test_who_is_forgotten_is_not_told_of(serve: Serve, upstream: FakeUpstream, url: str) -> None:
    phone = Phone(serve(CONFIG.replace("PAUSE", "100ms"), MEMORY_URL=url), Model(upstream))
    phone.talk("first")
    phone.noted()
    assert phone.proxy.client.delete("/v1/memory/users/ann").status_code == 204
    assert phone.calls() == []
    phone.begin("second")
    assert last_call_text(phone.say("Hello, me again.")) == ""


def test_who_forgets_takes_along_what_others_would_be_told_of_a_call_with_them(
    serve: Serve, upstream: FakeUpstream, url: str
) -> None:
    model = Model(upstream)
    proxy = serve(CONFIG.replace("PAUSE", "1h"), MEMORY_URL=url)
    ann, bob = Phone(proxy, model, named=True), Phone(proxy, model, "bob", named=True)
    for phone, lines in ((ann, TALK[:2]), (bob, TALK[2:])):
        phone.session, phone.lines = "room", list(ann.lines)
        for words, _ in lines:
            phone.say(words)
    bob.listed()
    ann.begin("another")
    ann.say("Hello?")
    ann.noted()
    bob.noted()
    assert proxy.client.delete("/v1/memory/users/bob").status_code == 204
    assert not any(PROMISE in str(call) for call in ann.calls())
    ann.begin("second")
    assert PROMISE not in last_call_text(ann.say("Hello, me again."))


def test_who_is_forgotten_while_notes_are_written_is_not_told_of(
    serve: Serve, upstream: FakeUpstream, url: str
) -> None:
    asked, forgotten = threading.Event(), threading.Event()

    def late_notes(request: Received) -> Iterable[Step]:
        asked.set()
        assert forgotten.wait(30)
        return notes(request)

    model = Model(upstream, late_notes)
    proxy = serve(CONFIG.replace("PAUSE", "1h"), MEMORY_URL=url)
    ann, bob = Phone(proxy, model, named=True), Phone(proxy, model, "bob", named=True)
    bob.begin("room")
    bob.say("I am Bob.")
    ann.session, ann.lines = "room", bob.lines
    ann.say(TALK[0][0])
    bob.say(TALK[1][0])
    bob.begin("another")
    bob.say("Hello?")
    assert asked.wait(30)
    assert proxy.client.delete("/v1/memory/users/ann").status_code == 204
    forgotten.set()
    settle(proxy)
    assert not any(PROMISE in str(call) for call in (*ann.calls(), *bob.calls()))
    bob.begin("second")
    assert PROMISE not in last_call_text(bob.say("Hello, me again."))


def test_who_spoke_early_in_a_long_call_is_noted_and_forgotten_as_one_who_spoke_late(
    serve: Serve, upstream: FakeUpstream, url: str
) -> None:
    config = CONFIG.replace("PAUSE", "1h").replace(
        "  deadline: 2s", "  deadline: 2s\n  window: {max_messages: 8, keep_messages: 2}"
    )
    model = Model(upstream)
    proxy = serve(config, MEMORY_URL=url)
    ann, bob = Phone(proxy, model, named=True), Phone(proxy, model, "bob", named=True)
    bob.begin("room")
    bob.say("I am Bob.")
    ann.session, ann.lines = "room", bob.lines
    ann.say(TALK[0][0])
    for number in range(12):
        bob.say(f"And what about the technician, number {number}?")
        settle(proxy)
    stored = proxy.run(proxy.app.memory.store.session(Key("default", "room")))  # type: ignore[union-attr]
    assert {entry.speaker for entry in stored.entries if entry.role == "user"} == {"bob"}
    bob.begin("another")
    assert PROMISE in last_call_text(bob.say("Hello?"))
    ann.noted()
    bob.noted()
    assert proxy.client.delete("/v1/memory/users/ann").status_code == 204
    assert not any(PROMISE in str(call) for call in bob.calls())
    assert PROMISE not in last_call_text(bob.say("And now?"))


def test_an_erased_session_is_not_told_of(serve: Serve, upstream: FakeUpstream, url: str) -> None:
    phone = Phone(serve(CONFIG.replace("PAUSE", "100ms"), MEMORY_URL=url), Model(upstream))
    phone.talk("first")
    phone.noted()
    phone.begin("second")
    assert PROMISE in last_call_text(phone.say("Hello, me again."))
    phone.listed()
    phone.proxy.run(phone.proxy.app.runtime.privacy.forget_session("default", "first"))
    assert PROMISE not in str(phone.calls())
    assert last_call_text(phone.say("And now?")) == ""
    phone.begin("third")
    assert PROMISE not in last_call_text(phone.say("Hello?"))


def test_what_is_never_stored_and_what_is_encrypted_is_so_in_notes_too(
    serve: Serve, upstream: FakeUpstream, tmp_path: Path
) -> None:
    config = CONFIG.replace("PAUSE", "100ms").replace(
        "  deadline: 2s", f"  deadline: 2s\n  encryption: [{KEY}]\n  redact: {{kinds: [email]}}"
    )
    address = "ann@example.test"
    text = f"{PROMISE} Write to {address}."
    model = Model(upstream, lambda _: answer(completion(text)))
    phone = Phone(serve(config, MEMORY_URL=f"sqlite:{tmp_path / 'm.db'}"), model)
    phone.proxy.client.put("/v1/memory/users/ann/profile", json={"text": f"Has {address}."})
    phone.talk("first")
    phone.noted()
    phone.begin("second")
    prompt = str(phone.say("Hello, me again."))
    assert PROMISE in prompt
    assert "[email]" in prompt
    assert address not in prompt
    stored = b"".join(file.read_bytes() for file in tmp_path.glob("m.db*"))
    assert stored
    assert b"technician" not in stored
    assert address.encode() not in stored


def test_a_long_call_goes_on_being_told_as_it_began_while_it_is_compacted(
    serve: Serve, upstream: FakeUpstream, url: str
) -> None:
    config = CONFIG.replace("PAUSE", "100ms").replace(
        "  deadline: 2s", "  deadline: 2s\n  window: {max_messages: 10, keep_messages: 4}"
    )
    phone = Phone(serve(config, MEMORY_URL=url), Model(upstream))
    phone.talk("first")
    phone.noted()
    phone.begin("second")
    prompts = []
    for number in range(12):
        prompts.append(phone.say(f"And what about the technician, number {number}?"))
        settle(phone.proxy)
    assert {last_call_text(prompt[1:2]) for prompt in prompts} == {last_call_text(prompts[0])}
    assert PROMISE in last_call_text(prompts[0])
