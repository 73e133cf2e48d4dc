"""Facts stay at the head of a prompt, new ones come at its end, and removed ones disappear."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from filters.base import Context
from filters.message import Message
from proxy.memory.archive.records import Fact
from proxy.memory.compaction import SessionLimits, forced_plan, insert_segment, make_segment, settle
from proxy.memory.facts.prompt import prompt_facts
from proxy.memory.session import Session, ShownFacts, decode, encode, with_positions
from proxy.memory.stores.store import Key
from proxy.memory.turn_record import TurnRecord, apply_turn
from proxy.memory.view import RequestView, prompt_view
from proxy.settings.load import load
from proxy.turn import chain
from tests.peers.fake_upstream import stream_of

CHAIN = load(Path(__file__).parents[3] / "config" / "agora.yaml", {}).pipelines["default"].request
SYSTEM = Message(role="system", content="Be brief.")
LIMITS = SessionLimits(max_messages=10, keep_messages=4, summaries=3)


def fact(number: int, **more: Any) -> Fact:
    return Fact(id=f"f{number}", text=f"Fact {number}x.", created=float(number), **more)


class Call:
    """A conversation that grows, while facts come and go."""

    def __init__(self, *, numbered: bool, size: int) -> None:
        self.numbered, self.size = numbered, size
        self.session, self.facts = Session(), [fact(0), fact(1)]
        self.lines: list[Message] = []
        self.made = 2
        self.gone: set[str] = set()
        self.excused = True
        self.prompts: list[tuple[bool, list[Message]]] = []

    def turn(self) -> None:
        n = len(self.lines) // 2
        self.say("user", n, f"user{n} asks for the {n}th time")
        shown = [SYSTEM, *self.lines[-self.size :]]
        snapshot, heard, epoch = prompt_view(RequestView(shown).view_of(self.session))
        told = prompt_facts(self.session, epoch, "ann", self.facts, limit=20, now=float(n))
        snapshot = msgspec.structs.replace(snapshot, facts=told.facts, news=told.news)
        prompt = list(chain.run(CHAIN, heard, Context(now=0.0, memory=snapshot), chain.FilterLog()))
        self.prompts.append((self.excused, [sent(message) for message in prompt]))
        self.excused = False
        self.check(prompt)
        record = TurnRecord(
            key=Key("t", "s"),
            user="ann",
            window=heard,
            answer=stream_of(f"answer{n} is here"),
            at=float(n),
            shown_facts=with_positions(told.shown_facts, prompt),
        )
        self.session = decode(encode(apply_turn(self.session, record)))
        self.say("assistant", n, f"answer{n} is here")

    def say(self, role: str, n: int, text: str) -> None:
        told = {"turn_id": n, "timestamp": 1000 + n} if self.numbered else {}
        self.lines.append(Message(role=role, content=text, **told))

    def check(self, prompt: list[Message]) -> None:
        """Each fact that is known once, the newest words last, and nothing that is gone."""
        shown = "\n".join(message.text for message in prompt)
        for one in self.facts:
            assert shown.count(one.text) == 1, (one.text, shown)
        assert not [text for text in self.gone if text in shown]
        assert prompt[0] == SYSTEM
        assert prompt[-1].text.endswith(self.lines[-1].text)

    def learn(self, *, replacing: bool = False) -> None:
        new = fact(self.made)
        self.made += 1
        if replacing and self.facts:
            self.remove()
        self.facts.append(new)

    def remove(self) -> None:
        if self.facts:
            gone = self.facts.pop(len(self.facts) // 2)
            self.gone.add(gone.text)
            self.excused = self.excused or self.tells(gone)

    def tells(self, one: Fact) -> bool:
        """Whether a change of the fact changes the prompt."""
        told = self.session.shown_facts
        return told is None or one.id in told.facts or one.id in dict(told.news)

    def correct(self) -> None:
        if self.facts:
            old = self.facts[0]
            self.gone.add(old.text)
            self.facts[0] = msgspec.structs.replace(old, text=f"{old.text[:-2]}y{self.made}.")
            self.excused = self.excused or self.tells(old)
            self.made += 1

    def compact(self) -> None:
        plan = forced_plan(self.session, LIMITS)
        if plan is not None:
            made = make_segment(self.session, plan, [], f"notes up to {plan.reach.turn}", now=1.0)
            self.session, _ = settle(insert_segment(self.session, plan, made), LIMITS.keep_messages)
            self.excused = True


def sent(message: Message) -> Any:
    return (message.role, message.content)


@given(
    steps=st.lists(
        st.sampled_from(["learn", "learn", "replace", "remove", "correct", "compact", ""]), max_size=14
    ),
    numbered=st.booleans(),
    size=st.integers(1, 12),
)
def test_the_prompt_only_grows_but_for_compactions_and_what_is_gone(
    steps: list[str], numbered: bool, size: int
) -> None:
    call = Call(numbered=numbered, size=size)
    for step in steps:
        call.turn()
        if step == "replace":
            call.learn(replacing=True)
        elif step:
            getattr(call, step)()
    call.turn()
    for (_, earlier), (excused, later) in zip(call.prompts, call.prompts[1:], strict=False):
        assert excused or later[: len(earlier)] == earlier


def test_what_is_learnt_in_a_conversation_stands_at_the_tail_until_a_compaction() -> None:
    call = Call(numbered=True, size=20)
    call.turn()
    call.learn()
    call.turn()
    head, tail = call.prompts[1][1][1][1], call.prompts[1][1][-1][1]
    assert "Fact 1x." in head and "Fact 2x." not in head
    assert "Fact 2x." in tail
    call.compact()
    call.turn()
    head, tail = call.prompts[2][1][1][1], call.prompts[2][1][-1][1]
    assert "Fact 2x." in head
    assert tail == "user2 asks for the 2th time"
    assert call.prompts[2][1][2][1].startswith("<conversation_so_far>")


def test_what_was_learnt_stays_before_the_words_that_it_was_first_told_with() -> None:
    call = Call(numbered=True, size=2)
    for learning in (True, False, True, False):
        call.turn()
        if learning:
            call.learn()
    shown = [text for role, text in call.prompts[-1][1] if role == "user"]
    assert ["Fact 2x." in text for text in shown] == [False, True, False, False]
    assert ["Fact 3x." in text for text in shown] == [False, False, False, True]


def test_where_a_prompt_lacks_room_all_news_stands_before_the_newest_words() -> None:
    call = Call(numbered=True, size=20)
    call.turn()
    call.learn()
    call.turn()
    call.session = msgspec.structs.replace(call.session, room=3)
    call.turn()
    assert "Fact 2x." in call.prompts[-1][1][-1][1]


def told_of(facts: list[Fact], before: ShownFacts | None = None, **more: Any) -> Any:
    given: dict[str, Any] = {"at": b"e", "person": "ann", "limit": 2, "now": 1.0, **more}
    return prompt_facts(Session(shown_facts=before), given.pop("at"), given.pop("person"), facts, **given)


def test_the_most_important_come_first_into_the_head_and_the_rest_is_no_news() -> None:
    facts = [fact(0, importance=0.9), fact(1, importance=0.1), fact(2, importance=0.8)]
    first = told_of(facts)
    assert [one.id for one in first.head] == ["f0", "f2"]
    assert first.tail == ()
    second = told_of([*facts, fact(3)], first.shown_facts)
    assert second.head == first.head
    assert [one.id for one in second.tail] == ["f3"]
    assert msgspec.structs.replace(second.shown_facts, news=(), at=1.0) == first.shown_facts
    assert told_of(
        [*facts, fact(3)], with_positions(second.shown_facts, [Message(role="user", content="Hi")])
    ).shown_facts.news


def test_of_what_was_learnt_since_no_more_than_the_limit_is_told_the_newest() -> None:
    first = told_of([fact(0)])
    second = told_of([fact(number) for number in range(4)], first.shown_facts)
    assert [one.id for one in second.tail] == ["f2", "f3"]


@pytest.mark.parametrize("other", [{"person": "bob"}, {"at": b"later"}])
def test_another_person_or_another_epoch_is_told_anew(other: dict[str, Any]) -> None:
    first = told_of([fact(0)])
    second = told_of([fact(0), fact(1)], first.shown_facts, **other)
    assert [one.id for one in second.head] == ["f0", "f1"]
    assert second.shown_facts != first.shown_facts


def test_a_session_keeps_no_word_of_what_is_known() -> None:
    kept = encode(Session(shown_facts=told_of([fact(0), fact(1)]).shown_facts))
    assert b"Fact" not in kept
    assert b"f0" in kept


def a_turn(
    at: float, told: ShownFacts | None, text: str = "Hi", answer: bytes = stream_of("Hello")
) -> TurnRecord:
    window = [Message(role="user", content=text, metadata={"user": "1001"})]
    return TurnRecord(key=Key("t", "s"), user="ann", window=window, answer=answer, at=at, shown_facts=told)


def test_a_record_keeps_what_was_told_last_and_a_failed_turn_keeps_nothing() -> None:
    old, new = told_of([fact(0)], now=1.0).shown_facts, told_of([fact(1)], now=2.0).shown_facts
    assert apply_turn(Session(), a_turn(1.0, old, answer=b"")).shown_facts is None
    session = apply_turn(apply_turn(Session(), a_turn(2.0, new)), a_turn(1.0, old, "Hi there"))
    assert session.shown_facts == new
    assert apply_turn(session, a_turn(3.0, None, "Hi you there")).shown_facts == new


def test_a_session_knows_how_the_engine_calls_its_person() -> None:
    session = apply_turn(Session(), a_turn(1.0, None))
    assert (session.user, session.alias, session.shared) == ("ann", "1001", False)


@pytest.mark.parametrize(
    ("named", "is_shared"), [("1001", True), (None, True), ("1002", False), ("bob", False)]
)
def test_a_session_knows_that_another_speaks_under_its_persons_name(
    named: str | None, is_shared: bool
) -> None:
    session = apply_turn(Session(), a_turn(1.0, None))
    marks = {"metadata": {"user": named}} if named else {}
    window = [Message(role="user", content="Me again", **marks)]
    other = TurnRecord(key=Key("t", "s"), user="bob", window=window, answer=stream_of("Hello"), at=2.0)
    assert apply_turn(session, other).shared is is_shared


def line(role: str, text: str, turn: int) -> Message:
    return Message(role=role, content=text, turn_id=turn, timestamp=1000 + turn)


def test_a_new_life_is_told_anew_from_its_first_turn_on_and_then_stands_still() -> None:
    session = Session()
    windows = [
        [line("user", "Hello there, it is Ann.", 1)],
        [
            line("user", "Hello there, it is Ann.", 1),
            line("assistant", "Hello", 1),
            line("user", "How are you?", 2),
        ],
        [msgspec.structs.replace(line("user", "Me once more, good evening.", 1), timestamp=9001)],
    ]
    again = [*windows[2], line("assistant", "Hello", 1), line("user", "And good night.", 2)]
    epochs = []
    for at, window in enumerate([*windows, again]):
        epochs.append(prompt_view(RequestView(window).view_of(session)).epoch)
        told = ShownFacts(user="ann", epoch=epochs[-1], at=float(at))
        record = TurnRecord(
            key=Key("t", "s"), window=window, answer=stream_of("Hello"), at=float(at), shown_facts=told
        )
        session = apply_turn(session, record)
    assert session.call == 1
    assert epochs[0] == epochs[1] != epochs[2] == epochs[3]
