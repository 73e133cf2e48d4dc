"""What an engine tells of its agents, in any order and as often as it likes."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from filters.message import Message
from proxy.memory.merge.answer import Answer, apply_answer
from proxy.memory.merge.calls import (
    Agent,
    agent_joined,
    agent_left,
    apply_history,
    has_seen,
    history_messages,
    plausible_time,
    with_event,
)
from proxy.memory.session import Deletion, Segment, Session, TurnRef, decode, encode
from tests.memory.call import Call, asked, message, reconcile

T = 1_790_000_000.0
A = Agent(id="a", start=T, stop=T + 100)
B = Agent(id="b", start=T + 200, stop=T + 300)
TALK = {
    "a": ["I am Ann.", "Hello, Ann.", "I want a refund.", "Of course, which order?"],
    "b": ["It is me again.", "Welcome back.", "Any news?", "Your refund is on its way."],
    "c": ["Where is my refund?", "It went out today.", "At last!", "Have a good day."],
}
C = Agent(id="c", start=T + 320, stop=T + 350)
NOTICES = [(kind, agent) for kind in ("joined", "left", "told") for agent in (A, B)]


def history(agent: Agent) -> list[Message]:
    lines = enumerate(TALK[agent.id])
    return history_messages(
        [
            {
                "role": "assistant" if i % 2 else "user",
                "content": text,
                "speech_start_ms": (agent.start + i) * 1000,
            }
            for i, text in lines
        ]
    )


def heard(session: Session, agent: Agent) -> Session:
    """The session after a call that went through the proxy, in two turns."""
    said = TALK[agent.id]
    for turn in (0, 1):
        now = agent.start + 10 + turn
        window = [
            Message(role="assistant" if i % 2 else "user", content=text, turn_id=1 + i // 2)
            for i, text in enumerate(said[: 2 * turn + 1])
        ]
        session = reconcile(session, window, now=now)
        answer = Answer(question=asked(session, window), text=said[2 * turn + 1])
        session = apply_answer(session, answer, now=now)
    return session


def after(session: Session, kind: str, agent: Agent) -> Session:
    name = f"{kind} {agent.id}"
    if has_seen(session, name):
        return session
    if kind == "told":
        session, life = apply_history(session, agent, history(agent), now=T + 400)
    else:
        session, life = (agent_joined if kind == "joined" else agent_left)(session, agent)
    return decode(encode(with_event(session, name, agent, life)))


def texts(session: Session) -> list[str]:
    return [entry.text for entry in session.entries]


def lives(session: Session) -> list[int]:
    return sorted({entry.call for entry in session.entries})


@given(st.permutations([*NOTICES, *NOTICES]))
def test_notices_of_calls_that_were_heard_change_no_word_in_any_order(notices):
    session = heard(heard(Session(), A), B)
    assert texts(session) == TALK["a"] + TALK["b"]
    for kind, agent in notices:
        session = after(session, kind, agent)
        assert texts(session) == TALK["a"] + TALK["b"]
    assert lives(session) == [0, 1]
    assert session.call == 2


@given(st.permutations([(kind, A) for kind in ("joined", "left", "told")] * 2))
def test_a_call_that_nobody_heard_is_told_once(notices):
    session = Session()
    for kind, agent in notices:
        session = after(session, kind, agent)
    assert texts(session) == TALK["a"]
    assert len(lives(session)) == 1


def test_a_call_that_began_behind_another_has_a_life_of_its_own():
    session = heard(Session(), A)
    session = after(after(session, "left", A), "joined", B)
    session = heard(session, B)
    assert [entry.call for entry in session.entries] == [0] * 4 + [1] * 4


def test_a_call_in_which_nothing_was_said_leaves_no_empty_life():
    session = Session()
    for kind, agent in [("joined", A), ("left", A), ("joined", B)]:
        session = after(session, kind, agent)
    assert session.call == 0


def test_an_agent_of_whom_nothing_was_seen_ends_no_call_of_the_next():
    session = after(after(Session(), "joined", A), "joined", B)
    session = heard(session, B)
    left = after(session, "left", A)
    assert (left.call, after(left, "left", B).call) == (session.call, session.call + 1)
    told = after(session, "told", A)
    assert texts(told) == TALK["a"] + TALK["b"]
    assert (told.agents.calls, told.call) == ({"a": 0, "b": 1}, 1)
    assert after(told, "left", B).call == 2


def test_an_end_that_is_told_late_of_an_unknown_agent_splits_no_call_that_went_on():
    later = [Message(role="user", content="Me again.", turn_id=3)]
    session = reconcile(heard(Session(), A), later, now=B.start)
    assert after(session, "left", A).call == session.call


@pytest.mark.parametrize("kind", ["left", "told"])
@pytest.mark.parametrize("stop", [T - 900, T + 5, T + 900])
def test_the_end_of_an_agent_that_is_known_ends_its_call_whenever_that_was(kind, stop):
    agent = msgspec.structs.replace(A, stop=stop)
    session = after(heard(Session(), A), "joined", A)
    ended = after(session, kind, agent)
    assert (ended.call, texts(ended)) == (session.call + 1, TALK["a"])


@pytest.mark.parametrize("known", [(), ("joined", "left"), ("joined", "told")])
def test_a_call_that_was_never_seen_stands_before_the_one_that_goes_on(known):
    session = heard(Session(), B)
    for kind in known:
        session = after(session, kind, B)
    session = heard(session, C) if known else session
    held = session
    for _ in range(2):
        session = after(session, "told", A)
        before = TALK["b"] if known else []
        assert texts(session) == [*before, *TALK["a"], *TALK["c" if known else "b"]]
        assert [entry.call for entry in session.entries] == sorted(entry.call for entry in session.entries)
        assert (session.call, session.next_turn) == (held.call + 1, held.next_turn)
        latest = session.latest_request
        assert latest.question.call == session.call
        assert session.entries[latest.start].text == held.entries[held.latest_request.start].text
    window = [Message(role="user", content="And then?", turn_id=9)]
    assert reconcile(session, window, now=T + 400).call == session.call


def test_what_a_session_says_of_its_current_call_moves_along_with_it():
    covered = Segment(text="s", call=0, turn=0)
    session = msgspec.structs.replace(
        with_event(heard(Session(), B), "n", B, 0), summaries=(covered,), learned_until=TurnRef(0, 1)
    )
    session = after(session, "told", A)
    assert session.agents.calls == {"b": 1, "a": 0}
    assert (session.summaries[0].end, session.learned_until) == (TurnRef(1, 0), TurnRef(1, 1))


def test_of_a_call_before_a_deletion_nothing_comes_back():
    session = msgspec.structs.replace(heard(Session(), B), deletion=Deletion(at=T + 150))
    assert texts(after(session, "told", A)) == TALK["b"]


def test_a_call_that_has_outgrown_the_hot_part_keeps_its_number():
    session = msgspec.structs.replace(heard(Session(), B), cold_count=2)
    assert after(session, "told", A).entries == session.entries


def test_who_joins_right_behind_another_is_not_taken_for_him():
    session = after(heard(Session(), A), "joined", A)
    session, life = agent_joined(session, Agent(id="b", start=A.start + 11))
    assert (life, session.call) == (1, 1)


def test_a_history_without_times_finds_its_call_by_its_words():
    session = heard(heard(Session(), A), B)
    agent = Agent(id="a")
    session, life = apply_history(
        session, agent, [*history(A), Message(role="user", content="Bye.")], now=T + 400
    )
    assert life == 0
    assert texts(session) == [*TALK["a"], "Bye.", *TALK["b"]]


def test_what_a_program_put_in_is_marked_as_that():
    lines = [
        {"role": "user", "content": "Hi", "speech_start_ms": 1715000001200},
        {"role": "user", "content": "User level: VIP"},
    ]
    assert [message.source for message in history_messages(lines)] == [None, "command"]
    assert [message.source for message in history_messages(lines[1:])] == [None]
    spoken = [{"role": role, "content": "[think API injected] VIP"} for role in ("user", "assistant")]
    assert [message.source for message in history_messages(spoken)] == ["command", None]


def test_a_session_notes_no_more_than_it_needs():
    session = Session()
    for number in range(100):
        session = with_event(session, f"n{number}", Agent(id=f"a{number}"), number)
    assert has_seen(session, "n99")
    assert not has_seen(session, "n0")
    assert len(encode(session)) < 1000


@pytest.mark.parametrize(
    "own", [None, 1, "n", {}, {"notices": 1, "lives": 1}, {"notices": ["n"]}, {"notices": [1], "lives": {}}]
)
def test_a_clients_own_state_of_that_name_is_left_alone(own):
    session = Session(state={"agora": own})
    assert not has_seen(session, "n")
    session = with_event(session, "n", A, 0)
    assert has_seen(session, "n")
    assert session.state == {"agora": own}


def test_a_time_is_seconds_or_milliseconds_of_our_age():
    assert plausible_time(1715000001) == plausible_time(1715000001000) == 1715000001.0
    assert [plausible_time(value) for value in (123, 0, -1, None, "x", True, 1e400)] == [None] * 7


def test_a_call_that_begins_with_the_words_of_the_last_one_is_another_by_its_times():
    call = Call()
    greeting, words = message("0a:Hello!", timestamp=1000), message("1u:Hi.", timestamp=1001)
    call.ask(greeting, words, answer="How can I help?")
    call.ask(
        greeting,
        words,
        message("1a:How can I help?", timestamp=1003),
        message("2u:Fine.", timestamp=1009),
        answer="Good.",
    )
    call.ask(message("0a:Hello!", timestamp=5000), message("1u:Hi.", timestamp=5001), answer="Welcome back.")
    assert [entry.call for entry in call.held.entries] == [0, 0, 0, 0, 0, 1, 1, 1]
