"""A question that is sent again in fuller words, by a client without turn numbers or history."""

import time
from typing import Any

import pytest

from tests.e2e.conftest import Address
from tests.peers.fake_upstream import CLOSE, HEAD, ROLE, FakeUpstream, chunk, delta, sse, stream_of
from tests.proxy_server import ProxyServer, Serve
from tests.remembering import CONFIG, assistant_message, call, stored_entries, texts, user

LONG = "A table, with pleasure. " * 20
"""Nobody can have heard all that within half a minute."""
EARLY, WHOLE = "book a table", "Book a table for four."


@pytest.fixture(params=["sqlite", "postgresql", "redis", "memory"])
def remembering(request: pytest.FixtureRequest, address: Address, serve: Serve) -> ProxyServer:
    return serve(CONFIG, MEMORY_URL=address(request.param))


@pytest.fixture
def proxy(serve: Serve) -> ProxyServer:
    return serve(CONFIG)


def ask(proxy: ProxyServer, upstream: FakeUpstream, *window: dict[str, Any], answer: str = LONG) -> list[str]:
    """What the model is shown of a turn."""
    upstream.script = lambda _: sse(stream_of(answer))
    call(proxy, *window, stream=True)
    stored_entries(proxy)
    return [message["content"] for message in upstream.last.json["messages"]]


@pytest.mark.parametrize("before", [(), ("Hello.",)], ids=["at first", "later on"])
def test_words_that_extend_the_last_ones_before_their_answer_was_spoken_revise_them(
    remembering: ProxyServer, upstream: FakeUpstream, before: tuple[str, ...]
) -> None:
    talk = []
    for words in before:
        ask(remembering, upstream, user(words), answer="Hi.")
        talk += [("user", words), ("assistant", "Hi.")]
    ask(remembering, upstream, user(EARLY))
    shown = ask(remembering, upstream, user(WHOLE), answer="For four.")
    assert shown == [*(text for _, text in talk), WHOLE]
    assert texts(stored_entries(remembering)) == [*talk, ("user", WHOLE), ("assistant", "For four.")]
    shown = ask(remembering, upstream, user("At eight."))
    assert shown == [*(text for _, text in talk), WHOLE, "For four.", "At eight."]


def test_a_question_may_be_revised_more_than_once(proxy: ProxyServer, upstream: FakeUpstream) -> None:
    for words in ("Book", EARLY, WHOLE):
        assert ask(proxy, upstream, user(words)) == [words]
    assert texts(stored_entries(proxy)) == [("user", WHOLE), ("assistant", LONG)]


def test_the_same_revision_again_changes_nothing(proxy: ProxyServer, upstream: FakeUpstream) -> None:
    ask(proxy, upstream, user(EARLY))
    for _ in range(2):
        assert ask(proxy, upstream, user(WHOLE)) == [WHOLE]
    assert texts(stored_entries(proxy)) == [("user", WHOLE), ("assistant", LONG)]


def test_an_answer_that_broke_off_is_revised_likewise(proxy: ProxyServer, upstream: FakeUpstream) -> None:
    upstream.says(HEAD, chunk(ROLE + delta(content=LONG)), CLOSE)
    call(proxy, user(EARLY), stream=True)
    stored_entries(proxy)
    assert ask(proxy, upstream, user(WHOLE)) == [WHOLE]
    assert texts(stored_entries(proxy)) == [("user", WHOLE), ("assistant", LONG)]


def test_words_that_come_once_the_answer_can_have_been_spoken_are_a_turn_of_their_own(
    remembering: ProxyServer, upstream: FakeUpstream
) -> None:
    ask(remembering, upstream, user("Yes."), answer="Really?")
    time.sleep(0.6)  # seven characters take half a second
    shown = ask(remembering, upstream, user("Yes, please."))
    assert shown == ["Yes.", "Really?", "Yes, please."]
    assert len(stored_entries(remembering)) == 4


@pytest.mark.parametrize("other", ["Book a tablecloth.", "A table for four.", "Please book a table."])
def test_other_words_revise_nothing(proxy: ProxyServer, upstream: FakeUpstream, other: str) -> None:
    ask(proxy, upstream, user(EARLY))
    assert ask(proxy, upstream, user(other)) == [EARLY, LONG, other]
    assert len(stored_entries(proxy)) == 4


def test_a_revision_leaves_what_a_window_has_shown(proxy: ProxyServer, upstream: FakeUpstream) -> None:
    ask(proxy, upstream, user("Yes."))
    ask(proxy, upstream, user("Yes."), assistant_message(LONG), user("No."))
    assert ask(proxy, upstream, user("No, thanks.")) == ["Yes.", LONG, "No, thanks."]
    shown = ask(
        proxy,
        upstream,
        user("Yes."),
        assistant_message(LONG),
        user("No, thanks."),
        assistant_message(LONG),
        user("Bye."),
    )
    assert shown == ["Yes.", LONG, "No, thanks.", LONG, "Bye."]


def test_a_revision_beside_an_equal_history_needs_no_clock(
    proxy: ProxyServer, upstream: FakeUpstream
) -> None:
    ask(proxy, upstream, user("Hello."), answer="Hi.")
    ask(proxy, upstream, user("Hello."), assistant_message("Hi."), user(EARLY), answer="Ok")
    time.sleep(0.2)
    window = [user("Hello."), assistant_message("Hi."), user(WHOLE)]
    assert ask(proxy, upstream, *window) == ["Hello.", "Hi.", WHOLE]
