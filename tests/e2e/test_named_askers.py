"""Several persons in one conversation whom nothing but each request's own user tells apart."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from tests.e2e.conftest import Address
from tests.e2e.test_speakers import ANSWERS, BOBS, EVES, QUESTION, contents, exported, found, settle
from tests.peers.fake_upstream import FakeUpstream, Received, Step, sse, stream_of
from tests.peers.scripted_model import fact, model
from tests.proxy_server import ProxyServer, Serve
from tests.waiting import until

CONFIG = """
memory:
  sessions: "${MEMORY_URL}"
  deadline: 5s
  summaries: {upstream: main, model: notes}
upstreams: {main: {base_url: "${UPSTREAM_BASE_URL}"}}
pipelines:
  default: {upstreams: [main], request: [restore_history, inject_summaries, recall, user_context]}
"""
FACTS = "  facts: {upstream: main, model: notes, pause: 100ms}\n"
AGAIN = "Which town has jazz, then?"


def answering(request: Any) -> Any:
    """The answer to the newest words."""
    newest = request.json["messages"][-1]["content"]
    answers = {BOBS: ANSWERS[1], EVES: ANSWERS[2], AGAIN: ANSWERS[3]}
    return sse(
        stream_of(next((answer for words, answer in answers.items() if newest.endswith(words)), "So."))
    )


@pytest.fixture
def proxy(serve: Serve, upstream: FakeUpstream, tmp_path: Path) -> ProxyServer:
    upstream.script = answering
    return serve(CONFIG, MEMORY_URL=f"sqlite:{tmp_path / 'memory.db'}")


def a_message(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "content": text}


WINDOW = [
    a_message("user", BOBS),
    a_message("assistant", ANSWERS[1]),
    a_message("user", EVES),
    a_message("assistant", ANSWERS[2]),
    a_message("user", AGAIN),
]


def ask(proxy: ProxyServer, window: list[dict[str, Any]], who: str, session: str = "room") -> None:
    headers = {"X-Session-Id": session, "X-User-Id": who}
    assert proxy.chat(window, headers=headers, stream=True).status_code == 200


def talked(proxy: ProxyServer) -> None:
    for end, who in ((1, "bob"), (3, "eve"), (5, "bob")):
        ask(proxy, WINDOW[:end], who)
    settle(proxy)


def test_each_finds_his_own_words_and_the_answers_to_them(proxy: ProxyServer) -> None:
    talked(proxy)
    assert (found(proxy, "bob"), found(proxy, "eve")) == ({BOBS, AGAIN}, {EVES})
    assert found(proxy, "bob", "assistant") == {ANSWERS[1], ANSWERS[3]}
    assert found(proxy, "eve", "assistant") == {ANSWERS[2]}


def test_each_is_told_his_own_words_in_a_later_call(proxy: ProxyServer, upstream: FakeUpstream) -> None:
    talked(proxy)
    for name, own, others in (("bob", BOBS, EVES), ("eve", EVES, BOBS)):
        ask(proxy, [a_message("user", QUESTION)], name, f"later-{name}")
        shown = upstream.last.json["messages"]
        assert f"the caller said: {own}" in shown[-1]["content"]
        assert others not in str(shown)


def test_whoever_is_forgotten_is_gone_from_anothers_conversation(proxy: ProxyServer) -> None:
    talked(proxy)
    eves = exported(proxy, "eve")
    assert [line["content"] for line in eves["sessions"][0]["contents"]] == [EVES]
    assert {turn["message"]["content"] for turn in eves["turns"]} == {EVES}
    assert proxy.client.delete("/v1/memory/users/eve").status_code == 204
    assert EVES not in contents(proxy) and BOBS in contents(proxy)
    assert found(proxy, "eve") == set()
    ask(proxy, [*WINDOW, a_message("assistant", ANSWERS[3]), a_message("user", "Bye.")], "bob")
    settle(proxy)
    assert EVES not in contents(proxy) and "Bye." in contents(proxy)


@pytest.mark.parametrize("store", ["sqlite", "redis", "postgresql", "memory"])
def test_words_that_were_being_answered_as_their_user_was_forgotten_do_not_stay_with_another(
    serve: Serve, upstream: FakeUpstream, address: Address, store: str
) -> None:
    proxy = serve(CONFIG.replace(", recall", ""), MEMORY_URL=address(store))
    forgotten = Event()

    def answer_once_forgotten(request: Received) -> Iterator[Step]:
        if request.json["messages"][-1]["content"] == EVES:
            forgotten.wait(30)
        yield from answering(request)

    upstream.script = answer_once_forgotten
    ask(proxy, WINDOW[:1], "bob")
    settle(proxy)
    with ThreadPoolExecutor(1) as threads:
        turn = threads.submit(ask, proxy, WINDOW[:3], "eve")
        assert until(lambda: len(upstream.requests) == 2)
        assert proxy.client.delete("/v1/memory/users/eve").status_code == 204
        forgotten.set()
        turn.result()
    assert until(lambda: ANSWERS[2] in contents(proxy) and EVES not in contents(proxy), 5)
    ask(proxy, WINDOW, "bob")
    settle(proxy)
    assert contents(proxy) == [BOBS, ANSWERS[1], ANSWERS[2], AGAIN, ANSWERS[3]]


def test_whoever_is_forgotten_is_not_told_of_in_a_call_that_goes_on(
    serve: Serve, upstream: FakeUpstream, tmp_path: Path
) -> None:
    upstream.script = answering
    config = CONFIG.replace("restore_history, inject_summaries", "restore_history, inject_last_call")
    proxy = serve(config, MEMORY_URL=f"sqlite:{tmp_path / 'memory.db'}")
    talked(proxy)
    later = [a_message("user", QUESTION)]
    ask(proxy, later, "bob", "later")
    assert EVES in str(upstream.last.json["messages"])
    settle(proxy)
    assert proxy.client.delete("/v1/memory/users/eve").status_code == 204
    ask(proxy, [*later, a_message("assistant", "So."), a_message("user", AGAIN)], "bob", "later")
    assert EVES not in str(upstream.last.json["messages"])


def test_facts_are_his_who_said_it(serve: Serve, upstream: FakeUpstream, tmp_path: Path) -> None:
    upstream.script = model(
        lambda a_message, _: [fact(line["text"], line["number"]) for line in a_message], answering
    )
    config = CONFIG.replace("  summaries:", f"{FACTS}  summaries:")
    proxy = serve(config, MEMORY_URL=f"sqlite:{tmp_path / 'memory.db'}")
    talked(proxy)

    def fact_texts(who: str) -> list[str]:
        facts = proxy.client.get(f"/v1/memory/users/{who}/facts").json()["data"]
        return [one["text"] for one in facts]

    assert until(lambda: EVES in fact_texts("eve") and AGAIN in fact_texts("bob"))
    assert EVES not in fact_texts("bob")


def test_notes_tell_who_spoke(proxy: ProxyServer, upstream: FakeUpstream) -> None:
    talked(proxy)
    ask(proxy, [*WINDOW, a_message("assistant", ANSWERS[3]), a_message("user", "Bye.")], "eve")
    upstream.script = lambda _: sse(stream_of("They talked: ", BOBS))
    proxy.client.post("/v1/memory/sessions/room/summaries").raise_for_status()
    asked = next(r for r in reversed(upstream.requests) if "<transcript>" in str(r.json))
    lines = asked.json["messages"][-1]["content"].splitlines()
    told = [json.loads(line) for line in lines if line.startswith('{"user":')]
    assert {one["user"]: one.get("speaker") for one in told} == {BOBS: None, EVES: "eve", AGAIN: "bob"}


def test_the_prompt_stays_as_the_engine_showed_it(proxy: ProxyServer, upstream: FakeUpstream) -> None:
    talked(proxy)
    window = [*WINDOW[4:], a_message("assistant", ANSWERS[3]), a_message("user", "And when?")]
    upstream.script = lambda _: sse(stream_of("At nine."))
    ask(proxy, window, "eve")
    assert [m["content"] for m in upstream.last.json["messages"][:3]] == [BOBS, ANSWERS[1], EVES]


def test_an_export_carries_who_spoke(proxy: ProxyServer) -> None:
    talked(proxy)
    carried = proxy.client.get("/v1/memory/sessions/room").json()
    proxy.client.put("/v1/memory/sessions/copy", json=carried).raise_for_status()
    settle(proxy)
    assert len(exported(proxy, "eve")["sessions"]) == 2
    assert found(proxy, "eve") == {EVES}
