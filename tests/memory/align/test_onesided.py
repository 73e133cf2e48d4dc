"""Windows that tell the user's side alone."""

import pytest

from filters.message import Message
from proxy.memory.merge.answer import Answer, apply_answer
from proxy.memory.session import Session
from proxy.memory.view import ChainNeeds, RequestView, prompt_view
from tests.memory.call import asked, reconcile

WORDS = ["Hello?", "A table, please.", "For two.", "At seven.", "Thank you."]
ANSWERS = ["Good day.", "For how many?", "When?", "Done.", "Bye."]


def user(text: str, **fields) -> Message:
    return Message(role="user", content=text, **fields)


def system(text: str) -> Message:
    return Message(role="system", content=text)


def grown(turns: int, *, shows: int = 0, finished: bool = True) -> Session:
    """A talk of which the engine shows the user's side, and the answers of the first ``shows`` turns."""
    session = Session()
    for turn in range(turns):
        window = []
        for earlier in range(turn + 1):
            window.append(user(WORDS[earlier]))
            if earlier < min(shows, turn):
                window.append(Message(role="assistant", content=ANSWERS[earlier]))
        session = reconcile(session, window, now=float(turn))
        answer = Answer(question=asked(session, window), text=ANSWERS[turn], finished=finished)
        session = apply_answer(session, answer, now=float(turn))
    return session


def prompt(session: Session, window: list[Message], *, restoring: bool = True) -> list[object]:
    """What the model is shown: instructions, what comes back, and the rest of the window."""
    told = prompt_view(RequestView(window).view_of(session), ChainNeeds(history=restoring))
    head = [m for m in told.window if m.role == "system"]
    rest = [m for m in told.window if m.role != "system"]
    return [m.content for m in (*head, *told.snapshot.dropped, *rest)]


@pytest.mark.parametrize("first", [0, 1])
def test_all_answers_come_back_between_what_the_window_shows(first: int):
    window = [system("Be brief."), *map(user, WORDS[first:4])]
    talk = [text for pair in zip(WORDS[:3], ANSWERS[:3], strict=True) for text in pair]
    assert prompt(grown(3), window) == ["Be brief.", *talk, WORDS[3]]


def test_the_same_request_again_gets_them_too():
    window = list(map(user, WORDS[:4]))
    session = reconcile(grown(3), window, now=9.0)
    talk = [text for pair in zip(WORDS[:3], ANSWERS[:3], strict=True) for text in pair]
    assert prompt(session, window) == [*talk, WORDS[3]]


def test_from_turn_to_turn_the_prompt_grows_at_its_end():
    before = prompt(grown(3), list(map(user, WORDS[:4])))
    after = prompt(grown(4), list(map(user, WORDS[:5])))
    assert after[: len(before)] == before


def test_one_answer_that_is_not_shown_may_not_have_been_heard():
    assert prompt(grown(1), list(map(user, WORDS[:2]))) == WORDS[:2]


def test_one_answer_among_several_words_may_not_have_been_heard_either():
    window = list(map(user, WORDS[:3]))
    session = reconcile(grown(1), window[:2], now=1.0)  # the second turn got no answer
    assert prompt(session, window) == WORDS[:3]


def test_of_an_engine_that_has_shown_answers_those_that_it_leaves_out_were_not_heard():
    assert prompt(grown(4, shows=2), list(map(user, WORDS[:5]))) == WORDS[:5]


def test_turns_that_are_numbered_tell_for_themselves():
    window = [user(text, turn_id=i) for i, text in enumerate(WORDS[:4])]
    session = Session()
    for turn in range(3):
        session = reconcile(session, window[: turn + 1], now=float(turn))
        answer = Answer(question=asked(session, window[: turn + 1]), text=ANSWERS[turn], finished=True)
        session = apply_answer(session, answer, now=float(turn))
    assert prompt(session, window) == WORDS[:4]


def test_answers_that_broke_off_do_not_come_back():
    assert prompt(grown(3, finished=False), list(map(user, WORDS[:4]))) == WORDS[:4]


def test_where_nothing_is_restored_the_window_stays_as_it_is():
    assert prompt(grown(3), list(map(user, WORDS[:4])), restoring=False) == WORDS[:4]


def test_a_window_with_a_picture_in_it_stays_as_it_is():
    window = list(map(user, WORDS[:4]))
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 1000}}
    window[1] = Message(role="user", content=[{"type": "text", "text": WORDS[1]}, picture])
    session = Session()
    for turn in range(3):
        session = reconcile(session, window[: turn + 1], now=float(turn))
        answer = Answer(question=asked(session, window[: turn + 1]), text=ANSWERS[turn], finished=True)
        session = apply_answer(session, answer, now=float(turn))
    assert prompt(session, window) == [m.content for m in window]
