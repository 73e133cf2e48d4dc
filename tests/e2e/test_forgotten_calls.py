"""A call that goes on after its person, or its session, was forgotten: the engine still replays all of it."""

from pathlib import Path
from typing import Any

import pytest

from proxy.memory.stores.store import Key
from tests.e2e.conftest import Address
from tests.peers.fake_upstream import FakeUpstream
from tests.peers.scripted_model import fact, model, says
from tests.proxy_server import ProxyServer, Serve
from tests.remembering import stored_entries, texts
from tests.waiting import awaited

CONFIG = """
memory:
  sessions: "${MEMORY_URL}"
  archive: {url: "${ARCHIVE_URL:-}"}
  deadline: 5s
  facts: {upstream: main, model: notes, pause: 100ms}
upstreams: {main: {base_url: "${UPSTREAM_BASE_URL}"}}
pipelines:
  default: {upstreams: [main], request: [repair_history, restore_history, restore_interrupted]}
"""
_LAST_CALL = """
memory: {sessions: "${MEMORY_URL}", deadline: 5s, call_pause: 1h, archive: {keep: "off"}}
upstreams: {main: {base_url: "${UPSTREAM_BASE_URL}"}}
pipelines: {default: {upstreams: [main], request: [repair_history, restore_history, inject_last_call]}}
"""
SECRET = "My secret is MANGO"
PERSON, SESSION = "/v1/memory/users/ann", "/v1/memory/sessions/s1"


def u(text: str, turn: int | None = None, speaker: str | None = None) -> dict[str, Any]:
    return _message("user", text, turn, {"source": "asr"} | ({"user": speaker} if speaker else {}))


def a(text: str, turn: int | None = None) -> dict[str, Any]:
    return _message("assistant", text, turn, {"source": "llm"})


def _message(role: str, text: str, turn: int | None, told: dict[str, Any]) -> dict[str, Any]:
    if turn is None:
        return {"role": role, "content": text}
    at = 1_700_000_000_000 + 10_000 * turn + (role == "assistant")
    return {"role": role, "content": text, "turn_id": turn, "timestamp": at, "metadata": told}


@pytest.fixture(params=["sqlite", "postgresql", "redis", "memory"])
def url(request: pytest.FixtureRequest, address: Address) -> str:
    return address(request.param)


@pytest.fixture
def environ(url: str, tmp_path: Path) -> dict[str, str]:
    return {"MEMORY_URL": url, "ARCHIVE_URL": f"sqlite:{tmp_path / 'archive.db'}"}


@pytest.fixture
def proxy(serve: Serve, upstream: FakeUpstream, environ: dict[str, str]) -> ProxyServer:
    upstream.script = model(find, says("Noted."))
    return serve(CONFIG, **environ)


def find(said: Any, _known: Any) -> Any:
    return [fact(line["text"], line["number"]) for line in said if line["text"].startswith("My ")]


def say(proxy: ProxyServer, *window: dict[str, Any], session: str = "s1", **fields: Any) -> Any:
    return proxy.chat(list(window), headers={"X-Session-Id": session, "X-User-Id": "ann"}, **fields)


def fact_texts(proxy: ProxyServer) -> list[str]:
    return [one["text"] for one in proxy.client.get(f"{PERSON}/facts").json()["data"]]


def told_of(proxy: ProxyServer) -> str:
    """Returns all data of the user that can be read, as one text."""
    export = proxy.client.get(f"{PERSON}/export").text
    found = proxy.client.post("/v1/memory/search", json={"user": "ann", "query": "secret mango"})
    system = proxy.client.get(f"{PERSON}/system_messages")
    return f"{export}{found.text}{system.text}"


def words(proxy: ProxyServer) -> list[tuple[str, Any]]:
    return texts(stored_entries(proxy))


@pytest.mark.parametrize("path", [PERSON, SESSION])
@pytest.mark.parametrize("numbered", [True, False])
def test_what_was_said_before_a_deletion_never_comes_back(
    proxy: ProxyServer, upstream: FakeUpstream, path: str, numbered: bool
) -> None:
    one, two, three = (1, 2, 3) if numbered else (None, None, None)
    before = [u(SECRET, one), a("Noted.", one)]
    say(proxy, before[0])
    awaited(lambda: fact_texts(proxy) == [SECRET])
    assert proxy.client.delete(path).status_code == 204
    proxy.client.delete(PERSON)
    asked = [*before, u("My cat is Tom", two)]
    say(proxy, *asked)
    assert [m["content"] for m in upstream.last.json["messages"]] == [SECRET, "Noted.", "My cat is Tom"]
    awaited(lambda: fact_texts(proxy) == ["My cat is Tom"])
    say(proxy, *asked, a("Noted.", two), u("And now?", three))
    assert words(proxy) == [
        ("user", "My cat is Tom"),
        ("assistant", "Noted."),
        ("user", "And now?"),
        ("assistant", "Noted."),
    ]
    awaited(lambda: "And now?" in told_of(proxy))
    assert "MANGO" not in told_of(proxy)
    assert fact_texts(proxy) == ["My cat is Tom"]


def test_it_stays_forgotten_in_another_process_and_as_the_window_slides(
    proxy: ProxyServer, serve: Serve, environ: dict[str, str], url: str
) -> None:
    if url == "memory:":
        pytest.skip("two of these share nothing")
    window = [u("Hello"), a("Noted."), u(SECRET), a("It is MANGO, as ever."), u("Yes")]
    say(proxy, *window[:3])
    stored_entries(proxy)
    proxy.client.delete(PERSON)
    other = serve(CONFIG, **environ)
    say(proxy, *window)
    stored_entries(
        proxy
    )  # and at once, as words of the user go on within the time in which an answer is spoken
    window[3] = a("It is MAN")
    window[4:] = [u("Yes, but why")]
    say(other, *window)
    assert words(other) == [("user", "Yes, but why"), ("assistant", "Noted.")]
    say(other, *window[2:], a("Noted."), u("Yes"))
    assert words(other)[2:] == [("user", "Yes"), ("assistant", "Noted.")]
    say(other, *window[3:], a("Noted."), u("Yes"), a("Noted."), u("Bye"))
    assert [text for _, text in words(other)] == ["Yes, but why", "Noted.", "Yes", "Noted.", "Bye", "Noted."]


def test_of_a_talk_of_several_one_stays_forgotten(proxy: ProxyServer) -> None:
    window = [u("I am Ann", 1, "ann"), a("Noted.", 1), u(f"Bob here. {SECRET}", 2, "bob")]
    say(proxy, *window)
    stored_entries(proxy)
    assert proxy.client.delete("/v1/memory/users/bob").status_code == 204
    say(proxy, *window, a("Noted.", 2), u("Ann again", 3, "ann"))
    assert [text for _, text in words(proxy)] == ["I am Ann", "Noted.", "Noted.", "Ann again", "Noted."]
    say(proxy, *window, a("Noted.", 2), u("Ann again", 3, "ann"), a("Noted.", 3), u("Bob again", 4, "bob"))
    assert [text for _, text in words(proxy)][-4:] == ["Ann again", "Noted.", "Bob again", "Noted."]


def test_results_of_calls_that_were_made_before_are_forgotten(proxy: ProxyServer) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"for": "MANGO"}'}}
    calling = {"role": "assistant", "content": None, "tool_calls": [call]}
    say(proxy, u(SECRET))
    stored_entries(proxy)
    proxy.client.delete(SESSION)
    asked = [u(SECRET), calling, {"role": "tool", "tool_call_id": "c1", "content": "MANGO it is"}]
    say(proxy, *asked)
    say(proxy, *asked, a("Noted."), u("Thanks"))
    assert [text for _, text in words(proxy)] == ["Noted.", "Thanks", "Noted."]


def test_turns_of_others_are_kept_without_what_a_forgotten_guest_said(
    upstream: FakeUpstream, serve: Serve, url: str
) -> None:
    upstream.script = model(find, says("Noted."))
    proxy = serve(_LAST_CALL, MEMORY_URL=url)

    def ask(user: str, session: str, *window: dict[str, Any]) -> str:
        headers = {"X-Session-Id": session, "X-User-Id": user}
        return str(proxy.chat(list(window), headers=headers).headers["x-request-id"])

    def kept() -> str:
        """All that bob's turns show."""
        export = proxy.client.get("/v1/memory/users/bob/export").json()
        pages = [proxy.client.get(f"/turns/{turn}").text for turn in turns]
        return f"{export['kept_turns']}{pages}"

    def is_listed() -> bool:
        stored = proxy.run(proxy.app.memory.store.load(Key("default", "room"), background=True))
        return bool(stored and stored.session.noted_until.call == stored.session.entries[-1].call)

    window = [u("Bob here."), a("Noted."), u(SECRET), a("Noted."), u("Let us talk of jazz.")]
    ask("bob", "room", *window[:1])
    ask("eve", "room", *window[:3])
    turns = [ask("bob", "room", *window)]
    stored_entries(proxy, "room")
    awaited(is_listed)

    def is_told() -> bool:
        """Whether a new call begins with the last one; what is listed may take a moment to be read."""
        turns.append(ask("bob", f"later-{len(turns)}", u("I am back.")))
        return SECRET in str(upstream.last.json["messages"])

    awaited(is_told)
    assert SECRET in kept()
    assert proxy.client.delete("/v1/memory/users/eve").status_code == 204
    assert "jazz" not in kept(), "what a turn shows is removed as a whole"
    assert SECRET not in kept()
