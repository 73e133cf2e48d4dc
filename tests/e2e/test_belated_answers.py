"""An interrupted answer that is replayed after the words that cut it, which a model would continue."""

from typing import Any

import pytest

from tests.peers.fake_upstream import FakeUpstream, stream_of
from tests.peers.fake_upstream import sse as streamed
from tests.proxy_server import ProxyServer, Serve
from tests.remembering import CONFIG, assistant_message, stored_entries, user

WHOLE = ("We open at nine.", " And we close", " at six.")
HEARD = assistant_message("We open at nine.")
MARK = "[interrupted here; the caller did not hear: And we close at six.]"
FIRST, CUT, NEXT = user("When do you open?"), user("On Sundays too?"), user("Thank you.")


@pytest.fixture
def proxy(serve: Serve, upstream: FakeUpstream) -> ProxyServer:
    proxy = serve(CONFIG)
    upstream.script = lambda request: streamed(stream_of(*WHOLE))
    assert shown(proxy, upstream, FIRST) == [FIRST["content"]]
    return proxy


def shown(proxy: ProxyServer, upstream: FakeUpstream, *window: dict[str, Any]) -> list[str]:
    """What the model is shown of a turn."""
    got = proxy.chat(list(window), headers={"X-Session-Id": "s1"}, stream=True)
    assert got.status_code == 200, got.text
    stored_entries(proxy)
    return [message["content"] for message in upstream.last.json["messages"]]


@pytest.mark.parametrize("times", [1, 2], ids=["once", "committed twice"])
def test_an_answer_stands_before_the_words_that_cut_it(
    proxy: ProxyServer, upstream: FakeUpstream, times: int
) -> None:
    upstream.script = lambda request: streamed(stream_of("Never on Sundays."))
    prompt = shown(proxy, upstream, FIRST, CUT, *[HEARD] * times)
    assert prompt == [FIRST["content"], f"{HEARD['content']} {MARK}", CUT["content"]]
    later = shown(proxy, upstream, FIRST, CUT, *[HEARD] * times, assistant_message("Never on Sundays."), NEXT)
    assert later == [*prompt, "Never on Sundays.", NEXT["content"]]
    assert [entry.text for entry in stored_entries(proxy)][:3] == [m["content"] for m in (FIRST, HEARD, CUT)]


def test_an_answer_that_memory_does_not_know_stays_where_it_is(
    proxy: ProxyServer, upstream: FakeUpstream
) -> None:
    spoken = assistant_message("This is a recording.")
    window = [FIRST, assistant_message("".join(WHOLE)), CUT, spoken]
    assert shown(proxy, upstream, *window) == [message["content"] for message in window]


def test_words_that_are_put_otherwise_still_stand_before_their_answer(
    proxy: ProxyServer, upstream: FakeUpstream
) -> None:
    window = [user("Van dew yew hope in?"), assistant_message("".join(WHOLE)), CUT]
    assert shown(proxy, upstream, *window)[-3:] == [message["content"] for message in window]
