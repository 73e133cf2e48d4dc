"""Whatever a platform replays of a call, memory stores the words that were heard."""

import pytest
from hypothesis import given, settings

from filters.letters import bare
from proxy.memory.merge.answer import Answer, apply_answer
from proxy.memory.session import Session
from tests.memory.call import Call, asked, marked, messages, missing, reconcile
from tests.memory.conversation_faults import TOOK, talks
from tests.memory.truth import Request, as_truth

NORMAL = pytest.param(100, id="100 calls")
LONG = pytest.param(2000, id="2000 calls", marks=[pytest.mark.long, pytest.mark.timeout(600)])


def every_call(check, examples):
    settings(max_examples=examples)(given(talks())(check))()


law = pytest.mark.parametrize("examples", [NORMAL, LONG])


def after(session: Session, request: Request, now: float) -> Session:
    session = reconcile(session, request.window, now=now)
    if request.answer is None:
        return session
    turn = asked(session, request.window, now=now)
    answer = Answer(question=turn, ended_at=request.at + TOOK, **request.answer)
    return apply_answer(session, answer, now=now)


def states(requests):
    """Yields each request with the session before and after it."""
    session = Session()
    for request in requests:
        before, session = session, after(session, request, request.at)
        yield before, request, session


@law
def test_memory_holds_what_was_heard(examples: int):
    def check(requests):
        for _, request, session in states(requests):
            assert as_truth(session) == request.gold

    every_call(check, examples)


@law
def test_the_same_request_again_changes_nothing(examples: int):
    def check(requests):
        for _, request, session in states(requests):
            again = request.at if request.answer is None else request.at + 99
            assert reconcile(session, request.window, now=again) == session
            assert after(session, request, again) == session

    every_call(check, examples)


@law
def test_turns_never_go_back(examples: int):
    def check(requests):
        for before, _, session in states(requests):
            turns = [(entry.call, entry.turn) for entry in session.entries]
            assert turns == sorted(turns)
            assert (session.call, session.next_turn) >= (before.call, before.next_turn)

    every_call(check, examples)


@law
def test_a_failed_turn_changes_nothing(examples: int):
    def check(requests):
        for _, request, session in states(requests):
            turn = asked(session, request.window)
            assert apply_answer(session, Answer(question=turn), now=99.0) == session

    every_call(check, examples)


@law
def test_exactly_what_was_cut_is_marked(examples: int):
    def check(requests):
        for before, request, session in states(requests):
            if request.faithful:
                for known in (before, session):
                    shown = marked(known, request.window, at=request.at)
                    was = [message.interrupted for message in request.window]
                    assert [m.interrupted for m in shown] == [
                        a or b for a, b in zip(was, request.cut, strict=True)
                    ]

    every_call(check, examples)


@law
def test_what_is_missing_and_the_window_cover_every_turn_once(examples: int):
    def check(requests):
        for before, request, _ in states(requests):
            if not request.faithful or request.heard is None:
                continue
            restored = [(m.role, bare(m.text)) for m in missing(before, request.window, at=request.at)]
            window = [(m.role, bare(m.text)) for m in request.window if m.source != "silence"]
            told = [*restored, *window]
            for line in request.heard:
                assert told.count(line) == request.heard.count(line)

    every_call(check, examples)


@pytest.mark.parametrize("first", [["u:Okay.", "u:Okay."], ["u:Okay.", "a:", "u:Okay."]])
@pytest.mark.parametrize("then", [["u:Okay.", "u:Okay."], ["u:Okay.", "a:", "u:Okay."]])
def test_the_same_words_are_asked_again_whether_or_not_an_unheard_answer_is_shown_without_words(first, then):
    call = Call()
    call.ask("u:Okay.", answer="Not heard.")
    call.ask("u:Okay.", "a:", "u:Well")
    call.ask(*first, answer="Fine.")
    assert missing(call.held, messages(*then)) == ()
    call.ask(*then, answer="Fine.")
    assert [line for line in call.memory if line[0] == "u"] == ["u:Okay.", "u:Okay."]
    assert call.memory[-1] == "a?:Fine."


def test_an_answer_may_have_been_heard_where_windows_showed_none_but_without_words_and_then_none_at_all():
    call = Call()
    call.ask("u:One.", answer="First.", finished=False)
    call.ask("u:One.", "a:", "u:Two.", answer="Second.")
    call.ask("a:", "u:Two.", "a:", "u:Three.", answer="Third.")
    call.ask("u:Three.", "u:Four.", answer="Fourth.")
    assert call.memory == ["u:One.", "u:Two.", "u:Three.", "a?:Third.", "u:Four.", "a?:Fourth."]
