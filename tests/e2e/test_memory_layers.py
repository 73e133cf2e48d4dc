"""Three layers of memory in one prompt: a session's messages, its summaries, and a user's facts."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.peers.fake_upstream import FakeUpstream, Received, Step, answer, completion
from tests.peers.scripted_model import fact, model, says
from tests.proxy_server import ProxyServer, Serve
from tests.waiting import awaited

CONFIG = """
memory:
  sessions: "${MEMORY_URL}"
  window: {max_messages: 8, keep_messages: 4}
  summaries: {upstream: main, model: notes}
  facts: {upstream: main, model: notes, pause: 200ms}
upstreams: {main: {base_url: "${UPSTREAM_BASE_URL}"}}
pipelines:
  default: {upstreams: [main], request: [repair_history, restore_history, inject_summaries, inject_facts]}
"""
PATH = "/v1/memory/sessions/s1"


def talk(request: Received) -> Iterable[Step]:
    if "<transcript>" in request.json["messages"][-1]["content"]:
        return answer(completion("They spoke of jazz."))
    return says("Noted.")(request)


def find(said: Any, _known: Any) -> Any:
    return [fact("Likes jazz.", line["number"]) for line in said if "jazz" in line["text"]]


@pytest.fixture
def proxy(serve: Serve, upstream: FakeUpstream, tmp_path: Path) -> ProxyServer:
    upstream.script = model(find, talk)
    return serve(CONFIG, MEMORY_URL=f"sqlite:{tmp_path / 'm.db'}")


def say(proxy: ProxyServer, text: str, session: str = "s1", user: str = "ann") -> None:
    """The client sends the newest words alone: the rest is for memory to know."""
    headers = {"X-Session-Id": session, "X-User-Id": user}
    before = size(proxy, session)
    message = {"role": "user", "content": text}
    assert proxy.chat([message], headers=headers, stream=True).status_code == 200
    awaited(lambda: size(proxy, session) == before + 2)


def prompts(upstream: FakeUpstream, text: str) -> list[list[str]]:
    """What the model was shown in each turn that ended with a text: background requests have another."""
    shown = [[one["content"] for one in request.json["messages"]] for request in upstream.requests]
    return [contents for contents in shown if contents[-1] == text]


def size(proxy: ProxyServer, session: str) -> int:
    got = proxy.client.get(f"/v1/memory/sessions/{session}")
    return len(got.json()["contents"]) if got.status_code == 200 else 0


def test_messages_summaries_and_facts_each_do_their_part(proxy: ProxyServer, upstream: FakeUpstream) -> None:
    for number in range(5):
        say(proxy, f"This is number {number}, and I like jazz.")
    awaited(lambda: proxy.client.get(f"{PATH}/summaries").json()["data"])
    awaited(lambda: proxy.client.get("/v1/memory/users/ann/facts").json()["data"])

    # Session: the newest messages word for word. Memory: notes on what overflowed. User memory: facts.
    say(proxy, "And now?")
    facts, notes, *rest = prompts(upstream, "And now?")[-1]
    assert "Likes jazz." in facts
    assert "They spoke of jazz." in notes
    assert [text for text in rest if "number 0" in text] == []
    assert "This is number 4, and I like jazz." in rest
    assert proxy.client.get(f"{PATH}/context").json()["context"] == "They spoke of jazz."

    # Another session of the user's begins afresh, and knows the user; another user's knows nothing.
    say(proxy, "Hello?", session="s2")
    first = prompts(upstream, "Hello?")[-1]
    assert "Likes jazz." in first[0]
    assert first[1:] == ["Hello?"]
    say(proxy, "Hello?", session="s3", user="bob")
    assert prompts(upstream, "Hello?")[-1] == ["Hello?"]

    # Clearing summaries takes no message and no fact.
    assert proxy.client.delete(f"{PATH}/summaries").status_code == 204
    assert size(proxy, "s1") == 12
    assert len(proxy.client.get("/v1/memory/users/ann/facts").json()["data"]) == 1
