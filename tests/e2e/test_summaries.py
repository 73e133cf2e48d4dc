"""Summaries and the state of a session over HTTP."""

from typing import Any

import pytest

from proxy.circuit import Backoff
from proxy.memory.stores.store import Key
from tests.e2e.conftest import Address
from tests.long_call import LongCall, config, is_notes, marks, model, noted, settle
from tests.peers.fake_upstream import FakeUpstream, answer, completion
from tests.proxy_server import ProxyServer, Serve
from tests.waiting import until

PATH = "/v1/memory/sessions/long"
BUSY = answer({"error": {"message": "Busy"}}, 503)


@pytest.fixture(params=["sqlite", "memory"])
def url(request: pytest.FixtureRequest, address: Address) -> str:
    return address(request.param)


@pytest.fixture
def proxy(serve: Serve, upstream: FakeUpstream, url: str) -> ProxyServer:
    upstream.script = model()
    return serve(config(10, 4), MEMORY_URL=url)


@pytest.fixture
def call(proxy: ProxyServer, upstream: FakeUpstream) -> LongCall:
    return LongCall(proxy, upstream)


def talk(call: LongCall, turns: int) -> None:
    for _ in range(turns):
        call.turn()
        settle(call.proxy)


def listed(proxy: ProxyServer) -> Any:
    got = proxy.client.get(f"{PATH}/summaries")
    assert got.status_code == 200, got.text
    return got.json()["data"]


def test_a_summary_says_how_far_it_reaches_and_who_made_it(call: LongCall, proxy: ProxyServer) -> None:
    talk(call, 6)
    (one,) = listed(proxy)
    assert one["text"] == "So far: u0-3 a0-3."
    assert (one["messages"], one["life"], one["turn"]) == (8, 0, 3)
    assert (one["model"], one["digest"]) == ("notes", False)
    assert one["made"] > 1.7e9


def test_the_context_is_all_summaries_as_one_text(call: LongCall, proxy: ProxyServer) -> None:
    talk(call, 10)
    texts = [one["text"] for one in listed(proxy)]
    assert len(texts) == 2
    assert proxy.client.get(f"{PATH}/context").json() == {"context": "\n".join(texts)}


def test_before_there_is_one_the_list_and_the_context_are_empty(call: LongCall, proxy: ProxyServer) -> None:
    talk(call, 1)
    assert listed(proxy) == []
    assert proxy.client.get(f"{PATH}/context").json() == {"context": ""}


def test_a_summary_is_made_when_it_is_asked_for(call: LongCall, proxy: ProxyServer) -> None:
    talk(call, 3)
    got = proxy.client.post(f"{PATH}/summaries")
    assert [one["text"] for one in got.json()["data"]] == ["So far: u0-0 a0-0."]
    talk(call, 1)
    call.check(call.prompts[-1])
    assert proxy.client.post(f"{PATH}/summaries").json()["data"] == listed(proxy)


@pytest.mark.parametrize(
    "headers", [{}, {"content-type": "text/plain"}, {"content-type": "application/x-www-form-urlencoded"}]
)
def test_how_it_is_asked_for_is_json_or_nothing(
    call: LongCall, proxy: ProxyServer, headers: dict[str, str]
) -> None:
    talk(call, 1)
    for body, status in ((b"", 200), (b"{}", 200), (b"a=b", 400), (b'{"message": []}', 400)):
        got = proxy.client.post(f"{PATH}/summaries", content=body, headers=headers)
        assert got.status_code == status, got.text


def test_a_summary_that_no_model_makes_is_an_error_and_changes_nothing(
    call: LongCall, proxy: ProxyServer, upstream: FakeUpstream
) -> None:
    talk(call, 3)
    upstream.script = model(lambda _: BUSY)
    got = proxy.client.post(f"{PATH}/summaries")
    assert got.status_code == 502
    assert set(got.json()["error"]) == {"message", "type", "param", "code"}
    assert listed(proxy) == []


def test_another_model_is_asked_where_the_first_fails(
    call: LongCall, proxy: ProxyServer, upstream: FakeUpstream
) -> None:
    talk(call, 3)
    asked: list[str] = []

    def script(request: Any) -> Any:
        asked.append(request.json["model"])
        return BUSY if is_notes(request) else noted(request)

    upstream.script = script
    got = proxy.client.post(f"{PATH}/summaries", json={"fallback_model": "other"})
    assert got.json()["data"][0]["model"] == "other"
    assert asked == ["notes", "other"]


def test_messages_from_elsewhere_are_summarised_as_well(call: LongCall, proxy: ProxyServer) -> None:
    talk(call, 1)
    told = [{"role": "user", "content": "user77 said before that the hotel by the lake is full."}]
    assert proxy.client.post(f"{PATH}/summaries", json={"messages": told}).status_code == 200
    (one,) = listed(proxy)
    assert one["text"] == "So far: u77-77."
    talk(call, 6)
    assert [s["text"] for s in listed(proxy)] == ["So far: u77-77.", "So far: u0-3 a0-3."]


def test_messages_need_no_session_to_be_summarised_in(call: LongCall, proxy: ProxyServer) -> None:
    told = [{"role": "user", "content": "user77 said before that the hotel by the lake is full."}]
    got = proxy.client.post(f"{PATH}/summaries", json={"messages": told})
    assert got.status_code == 200, got.text
    assert [one["text"] for one in got.json()["data"]] == ["So far: u77-77."]
    assert listed(proxy) == got.json()["data"]
    assert proxy.client.get(f"{PATH}/context").json() == {"context": "So far: u77-77."}
    assert proxy.client.get(PATH).json()["contents"] == []
    talk(call, 1)
    assert "So far: u77-77." in str(call.prompts[-1])


def said_by(user: str, text: str) -> dict[str, Any]:
    return {"role": "user", "content": text, "metadata": {"user": user}}


def test_summaries_of_messages_from_elsewhere_go_with_their_users(
    proxy: ProxyServer, upstream: FakeUpstream
) -> None:
    proxy.client.put(PATH, json={"user": "bob", "contents": [said_by("bob", "I am Bob.")]})
    upstream.script = model(lambda _: answer(completion("Eve's secret town is MANGO.")))
    sent = {"messages": [said_by("eve", "My secret town is MANGO.")]}
    for session in ("long", "fresh"):
        got = proxy.client.post(f"/v1/memory/sessions/{session}/summaries", json=sent)
        assert [one["text"] for one in got.json()["data"]] == ["Eve's secret town is MANGO."]
    assert proxy.client.delete("/v1/memory/users/eve").status_code == 204
    assert listed(proxy) == []
    assert [one["content"] for one in proxy.client.get(PATH).json()["contents"]] == ["I am Bob."]
    assert proxy.client.get("/v1/memory/sessions/fresh").status_code == 404


def test_summaries_of_messages_from_elsewhere_outlive_the_forgetting_of_others(
    proxy: ProxyServer, upstream: FakeUpstream
) -> None:
    contents = [said_by("bob", "I am Bob."), said_by("eve", "I am Eve."), said_by("bob", "Bob again.")]
    summaries = [{"text": "They greeted.", "messages": 2}]
    proxy.client.put(PATH, json={"user": "bob", "contents": contents, "summaries": summaries})
    upstream.script = model(lambda _: answer(completion("Bob ordered KIWI, number 4711.")))
    sent = {"messages": [said_by("bob", "I ordered KIWI, number 4711.")]}
    got = proxy.client.post(f"{PATH}/summaries", json=sent)
    texts = [one["text"] for one in got.json()["data"]]
    assert texts == ["They greeted.", "Bob ordered KIWI, number 4711."]
    assert proxy.client.delete("/v1/memory/users/eve").status_code == 204
    assert [one["text"] for one in listed(proxy)] == ["Bob ordered KIWI, number 4711."]
    left = proxy.client.get(PATH).json()["contents"]
    assert [one["content"] for one in left] == ["I am Bob.", "Bob again."]


def test_what_comes_of_nothing_makes_no_session(proxy: ProxyServer, upstream: FakeUpstream) -> None:
    system = [{"role": "system", "content": "Be brief."}]
    for messages in ([], system):
        got = proxy.client.post(f"{PATH}/summaries", json={"messages": messages})
        assert (got.status_code, got.json()) == (200, {"object": "list", "data": []})
    upstream.script = model(lambda _: BUSY)
    told = [{"role": "user", "content": "Hi"}]
    assert proxy.client.post(f"{PATH}/summaries", json={"messages": told}).status_code == 502
    assert proxy.client.post(f"{PATH}/summaries").status_code == 404
    assert proxy.client.get("/v1/memory/sessions").json()["data"] == []


def test_clearing_a_summary_loses_nothing(call: LongCall, proxy: ProxyServer) -> None:
    talk(call, 14)
    before = proxy.client.get(PATH).json()["contents"]
    assert len(before) == 28
    assert proxy.client.delete(f"{PATH}/summaries").status_code == 204
    assert listed(proxy) == []
    after = proxy.client.get(PATH).json()
    assert (after["contents"], after["summaries"]) == (before, [])
    prompt = call.turn()
    assert "u0-" not in str(prompt)
    call.check(prompt)
    settle(proxy)
    assert listed(proxy)


def test_cleared_summaries_do_not_come_back_before_the_next_turn(call: LongCall, proxy: ProxyServer) -> None:
    talk(call, 9)
    assert listed(proxy)
    assert proxy.client.delete(f"{PATH}/summaries").status_code == 204
    for _ in range(2):
        proxy.run(proxy.app.runtime.worker._check(Key("default", "long")))
        settle(proxy)
        assert listed(proxy) == []
    talk(call, 1)
    call.check(call.prompts[-1])
    assert listed(proxy)


def test_cleared_summaries_are_made_again_when_they_are_asked_for(call: LongCall, proxy: ProxyServer) -> None:
    talk(call, 9)
    assert proxy.client.delete(f"{PATH}/summaries").status_code == 204
    assert proxy.client.post(f"{PATH}/summaries").json()["data"] == listed(proxy) != []


class Crowded:
    """A server that merges past three summaries; the most that it ever lists is noted."""

    def __init__(self, serve: Serve, upstream: FakeUpstream, url: str) -> None:
        self.proxy = serve(config(6, 2).replace("max: 10", "max: 3"), MEMORY_URL=url)
        self.call = LongCall(self.proxy, upstream)
        self.most = 0

    def talk(self, turns: int) -> None:
        for _ in range(turns):
            self.call.turn()
            self.look()

    def look(self) -> None:
        got = self.proxy.client.get(f"{PATH}/summaries")
        self.most = max(self.most, len(got.json().get("data", ())))


@pytest.fixture
def crowded(serve: Serve, upstream: FakeUpstream, url: str) -> Crowded:
    return Crowded(serve, upstream, url)


@pytest.mark.parametrize("fails", ["nothing", "merging", "all"])
def test_there_is_never_more_than_one_summary_past_the_most(
    crowded: Crowded, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    def notes(request: Any) -> Any:
        merging = "<notes>" in request.json["messages"][-1]["content"]
        return BUSY if fails == "all" or (fails == "merging" and merging) else noted(request)

    monkeypatch.setattr("proxy.background.backoff._SESSION", Backoff(0.01, 0.1))
    upstream.script = model(notes)
    crowded.talk(60)
    upstream.script = model()
    assert until(lambda: not any(one["digest"] for one in listed(crowded.proxy)))
    settle(crowded.proxy)
    crowded.look()
    assert 3 <= crowded.most <= 4
    crowded.call.check(crowded.call.turn())


def test_nor_where_they_are_added_from_elsewhere(crowded: Crowded, upstream: FakeUpstream) -> None:
    upstream.script = model()
    for number in range(12):
        elsewhere = [{"role": "user", "content": f"user{number} said that the hotel by the lake is full."}]
        got = crowded.proxy.client.post(f"{PATH}/summaries", json={"messages": elsewhere})
        assert len(got.json()["data"]) <= 4
    told = marks([{"content": crowded.proxy.client.get(f"{PATH}/context").json()["context"]}])
    assert set(told) == {("user", n) for n in range(12)}


def test_nor_where_they_are_imported(crowded: Crowded) -> None:
    contents = [{"role": role, "content": f"{role} {n}"} for n in range(9) for role in ("user", "assistant")]
    summaries = [{"text": f"Notes {n}.", "messages": 2} for n in range(6)]
    crowded.proxy.client.put(PATH, json={"contents": contents, "summaries": summaries}).raise_for_status()
    crowded.look()
    assert crowded.most <= 4


@pytest.mark.parametrize("exact", [True, False])
def test_a_session_is_carried_with_its_summaries(call: LongCall, proxy: ProxyServer, exact: bool) -> None:
    talk(call, 10)
    exported = proxy.client.get(PATH).json()
    assert len(exported["summaries"]) == 2
    if not exact:
        del exported["turnkeeper"]
    other = proxy.client.put("/v1/memory/sessions/other", json=exported).json()
    assert [s["text"] for s in other["summaries"]] == [s["text"] for s in exported["summaries"]]
    assert other["contents"] == exported["contents"]
    call.session = "other"
    call.check(call.turn())


@pytest.mark.parametrize(
    "wrong",
    [
        "x",
        [1],
        [{"text": "x"}],
        [{"text": 1, "messages": 1}],
        [{"text": "x", "messages": 3}],
        [{"text": " \n", "messages": 1}],
        [""],
    ],
)
def test_summaries_that_cannot_be_are_refused(proxy: ProxyServer, wrong: Any) -> None:
    contents = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
    got = proxy.client.put(PATH, json={"contents": contents, "summaries": wrong})
    assert got.status_code == 400
    assert got.json()["error"]["param"] == "summaries"


def test_a_text_alone_is_imported_as_a_summary_of_what_was_said_before(proxy: ProxyServer) -> None:
    contents = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
    texts = ["They spoke of tea.", "And milk."]
    got = proxy.client.put(PATH, json={"contents": contents, "summaries": texts})
    assert [(each["text"], each["messages"]) for each in got.json()["summaries"]] == [
        ("They spoke of tea.", 0),
        ("And milk.", 0),
    ]
    assert proxy.client.get(f"{PATH}/context").json() == {"context": "They spoke of tea.\nAnd milk."}
    assert [each["content"] for each in proxy.client.get(PATH).json()["contents"]] == ["Hi", "Hello"]


@pytest.mark.parametrize("path", ["summaries", "context", "state"])
def test_what_is_not_there_is_404(proxy: ProxyServer, path: str) -> None:
    got = proxy.client.get(f"/v1/memory/sessions/nobody/{path}")
    assert got.status_code == 404
    assert got.json()["error"]["code"] == "session_not_found"


def test_without_summaries_configured_none_are_made(serve: Serve, upstream: FakeUpstream) -> None:
    text = config(10, 4).replace("  summaries: {upstream: main, model: notes, max: 10, timeout: 5s}\n", "")
    proxy = serve(text)
    proxy.client.put(PATH, json={"contents": [{"role": "user", "content": "Hi"}]})
    assert proxy.client.post(f"{PATH}/summaries").json()["error"]["code"] == "summaries_off"
    assert listed(proxy) == []


def test_a_long_import_is_summarised_at_once(proxy: ProxyServer, call: LongCall) -> None:
    contents = [
        {"role": role, "content": f"{'user' if role == 'user' else 'answer'}{n} is about the sea and the sky"}
        for n in range(60)
        for role in ("user", "assistant")
    ]
    proxy.client.put(PATH, json={"contents": contents})
    settle(proxy)
    call.number = 60
    call.numbered = False
    call.lines = [{**line} for line in contents[-8:]]
    call.check(call.turn())


# --- a speaker is forgotten


def told_by_two(proxy: ProxyServer, *, bobs: int) -> list[str]:
    """A session of Ann's, the first four turns of it summarised; all in it but what Bob says in one turn."""
    contents: list[dict[str, Any]] = []
    for n in range(7):
        name, text = ("bob", "My account is 4711.") if n == bobs else ("ann", f"user{n} sees the sea.")
        contents.append({"role": "user", "content": text, "metadata": {"user": name}})
        contents.append({"role": "assistant", "content": f"answer{n} is about it."})
    told = {"contents": contents, "summaries": [{"text": "Notes of four turns.", "messages": 8}]}
    assert proxy.client.put(PATH, json=told).status_code == 200
    return [line["content"] for line in contents if "4711" not in line["content"]]


def spoken(proxy: ProxyServer) -> list[str]:
    return [line["content"] for line in proxy.client.get(PATH).json()["contents"]]


def test_with_a_forgotten_speakers_words_go_the_summaries_of_them(
    call: LongCall, proxy: ProxyServer, upstream: FakeUpstream
) -> None:
    left = told_by_two(proxy, bobs=1)
    assert proxy.client.delete("/v1/memory/users/bob").status_code == 204
    assert spoken(proxy) == left
    assert listed(proxy) == []
    assert proxy.client.get(f"{PATH}/context").json() == {"context": ""}
    call.number, call.numbered = 7, False
    prompt = call.turn()
    settle(proxy)
    assert "Notes of four turns." not in str(prompt)
    assert listed(proxy)
    assert not [request for request in upstream.requests if b"4711" in request.body]


def test_summaries_of_what_others_said_stay(proxy: ProxyServer) -> None:
    left = told_by_two(proxy, bobs=5)
    assert proxy.client.delete("/v1/memory/users/bob").status_code == 204
    assert spoken(proxy) == left
    assert [one["text"] for one in listed(proxy)] == ["Notes of four turns."]


# --- state


def test_a_state_is_put_merged_and_shown(proxy: ProxyServer, call: LongCall) -> None:
    talk(call, 1)
    assert proxy.client.get(f"{PATH}/state").json() == {}
    assert proxy.client.put(f"{PATH}/state", json={"plan": "gold", "left": 3}).json() == {
        "plan": "gold",
        "left": 3,
    }
    assert proxy.client.patch(f"{PATH}/state", json={"left": None, "tags": ["a"]}).json() == {
        "plan": "gold",
        "tags": ["a"],
    }
    talk(call, 12)
    assert proxy.client.get(f"{PATH}/state").json() == {"plan": "gold", "tags": ["a"]}


@pytest.mark.parametrize(
    "wrong", [b"[]", b"1", b"{", b'{"n": 1e999}', b'{"n": 99999999999999999999999}', b""]
)
def test_a_state_is_an_object(proxy: ProxyServer, call: LongCall, wrong: bytes) -> None:
    talk(call, 1)
    got = proxy.client.put(f"{PATH}/state", content=wrong, headers={"content-type": "application/json"})
    assert got.status_code == 400, got.text
    assert proxy.client.get(f"{PATH}/state").json() == {}


def test_a_state_is_small(proxy: ProxyServer, call: LongCall) -> None:
    talk(call, 1)
    proxy.client.put(f"{PATH}/state", json={"a": "x" * 5000})
    assert proxy.client.patch(f"{PATH}/state", json={"b": "x" * 5000}).status_code == 413
    assert list(proxy.client.get(f"{PATH}/state").json()) == ["a"]


def test_a_state_is_at_hand_in_templates(serve: Serve, upstream: FakeUpstream) -> None:
    steps = "[{system_prompt: {text: 'The caller has the plan {state.plan}.'}}, "
    steps += "{user_context: {template: '{state.desk}> '}}]"
    text = 'memory: {sessions: "memory:"}\nupstreams: {main: {base_url: "${UPSTREAM_BASE_URL}"}}\n'
    proxy = serve(f"{text}pipelines: {{default: {{upstreams: [main], request: {steps}}}}}")
    said = [{"role": "user", "content": "Hi {state.plan}"}]
    proxy.chat(said, headers={"X-Session-Id": "long"})
    assert [m["content"] for m in upstream.last.json["messages"]] == [
        "The caller has the plan unknown.",
        "Hi {state.plan}",
    ]
    proxy.run(proxy.app.memory.recorder.drain())  # type: ignore[union-attr]
    proxy.client.put(f"{PATH}/state", json={"plan": "gold\n{user}", "desk": 7})
    proxy.chat(said, headers={"X-Session-Id": "long"})
    assert [m["content"] for m in upstream.last.json["messages"]] == [
        "The caller has the plan gold {user}.",
        "7> Hi {state.plan}",
    ]


def test_the_practice_model_has_summaries_of_the_turns_own_sentences(serve: Serve) -> None:
    proxy = serve(config(10, 4), UPSTREAM_BASE_URL="practice:")
    headers = {"X-Session-Id": "long"}
    said = ["My name is Ann Miller.", "Hm.", "Please cancel order 4711.", "Well.", "So.", "Right.", "Fine."]
    for n, text in enumerate(said):
        proxy.chat([{"role": "user", "content": text, "turn_id": n}], headers=headers)
        settle(proxy)
    (one,) = listed(proxy)
    assert one["digest"]
    assert one["model"] is None
    assert "Ann Miller" in one["text"] and "order 4711" in one["text"]
    shown = proxy.chat([{"role": "user", "content": "Who am I?", "turn_id": 8}], headers=headers).json()
    assert "conversation_so_far" in shown["choices"][0]["message"]["content"]


SAID = ["My name is Ann Miller.", "Please cancel order 4711.", "And book a room in Rome for the 5th of May."]
ELSEWHERE = [{"role": "user", "content": "I paid 300 euros on Monday."}]


@pytest.fixture
def unnamed(serve: Serve, upstream: FakeUpstream, url: str) -> ProxyServer:
    """A server without a model for summaries, and an imported session without a turn of its own."""
    upstream.script = model()
    proxy = serve(config(10, 1).replace(", model: notes", ""), MEMORY_URL=url)
    assert proxy.client.put(PATH, json={"contents": turns(SAID)}).status_code == 200
    return proxy


def turns(texts: list[str], first: int = 0) -> list[dict[str, Any]]:
    told = ((n, role, text) for n, text in enumerate(texts, first) for role in ("user", "assistant"))
    return [
        {"role": role, "turn_id": n, "content": text if role == "user" else "Yes."} for n, role, text in told
    ]


def made(proxy: ProxyServer, **asked: Any) -> list[dict[str, Any]]:
    got = proxy.client.post(f"{PATH}/summaries", json=asked)
    assert got.status_code == 200, got.text
    return list(got.json()["data"])


def test_where_no_model_is_named_a_summary_has_the_turns_own_sentences(
    unnamed: ProxyServer, upstream: FakeUpstream
) -> None:
    (one,) = made(unnamed)
    assert (one["digest"], one["model"]) == (True, None)
    assert "Ann Miller" in one["text"] and "4711" in one["text"]
    assert made(unnamed) == [one]
    assert upstream.requests == []


def test_where_no_model_is_named_messages_from_elsewhere_are_told_so_too(
    unnamed: ProxyServer, upstream: FakeUpstream
) -> None:
    (one,) = made(unnamed, messages=ELSEWHERE)
    assert (one["digest"], one["model"]) == (True, None)
    assert "300 euros" in one["text"]
    assert upstream.requests == []


def test_a_model_that_is_named_with_the_request_is_asked(
    unnamed: ProxyServer, upstream: FakeUpstream
) -> None:
    upstream.script = lambda _: answer(completion("Ann cancels an order."))
    (one,) = made(unnamed, fallback_model="other")
    assert (one["digest"], one["model"], one["text"]) == (False, "other", "Ann cancels an order.")


def test_a_digest_gives_way_once_the_session_has_a_model(
    unnamed: ProxyServer, upstream: FakeUpstream
) -> None:
    made(unnamed)
    upstream.script = lambda _: answer(completion("Ann cancels an order."))
    unnamed.chat([*turns(SAID), {"role": "user", "content": "Thanks."}], headers={"X-Session-Id": "long"})
    settle(unnamed)
    first = listed(unnamed)[0]
    assert (first["digest"], first["model"]) == (False, "fake")
