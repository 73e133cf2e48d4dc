"""Memory merges a redacted window as if the client had sent the marks itself."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from filters.letters import bare
from filters.message import Message
from filters.redact import Redact
from proxy.memory.redacted_view import UNREDACTED, WindowRedaction
from proxy.memory.redaction import Redaction
from proxy.memory.session import Session, decode, encode
from proxy.memory.stores.store import Key
from proxy.memory.turn_record import TurnRecord, apply_turn
from proxy.memory.view import ChainNeeds, PromptView, RequestView, prompt_view
from tests.memory.call import message
from tests.memory.conversation_faults import talks
from tests.memory.reconcile.test_replayed_conversations import states
from tests.peers.fake_upstream import ROLE, delta, stream_of

REDACTING = WindowRedaction(Redaction(Redact(patterns={"order": "ORD-[0-9]+"})))
SECRETS = ("4111 1111 1111 1111", "ann@example.org", "+49 170 1234567", "DE89 3704 0044 0532 0130 00")
WORDS = (
    "My number is {}.",
    "{}",
    "Take {} or {}, please.",
    "I need 3 lamps.",
    "Yes.",
    "Say it: {} is right?",
)
WANTED = ChainNeeds(summaries=False, history=True)


class Turn(NamedTuple):
    """The words, the answer, and how many characters of it are heard."""

    asked: str
    answer: str
    heard: int | None = None
    broken: bool = False


@st.composite
def words(draw: Any) -> str:
    template = draw(st.sampled_from(WORDS))
    return str(template.format(*(draw(st.sampled_from(SECRETS)) for _ in range(template.count("{}")))))


@st.composite
def turns(draw: Any) -> list[Turn]:
    said = draw(st.lists(st.tuples(words(), words(), st.booleans()), min_size=1, max_size=6))
    made = []
    for n, (asked, answer, is_cut) in enumerate(said):
        whole = f"Answer {chr(65 + n)}. {answer} And so on, and on, my friend."
        heard = draw(st.integers(10, len(whole) - 1)) if is_cut else None
        made.append(Turn(f"So {chr(65 + n)}: {asked}", whole, heard))
    return made


def heard_of(turn: Turn) -> str:
    return turn.answer if turn.heard is None else turn.answer[: turn.heard].rstrip()


def marked(turn: Turn) -> str:
    """What is heard of an answer, as a client would send it that knows of marks alone."""
    heard, rules = heard_of(turn), REDACTING.rules
    words = rules.text(heard)
    if bare(rules.text(turn.answer)).startswith(bare(words)):
        return words
    begun = [begin for begin, end, _ in rules.sensitive.find(turn.answer) if begin < len(heard) < end]
    return rules.text(heard[: begun[0]]).rstrip()


class Talk:
    """A session while an engine replays its window."""

    def __init__(self, redaction: WindowRedaction, *, numbered: bool, size: int, reading: bool) -> None:
        self.redaction, self.numbered, self.size, self.reading = redaction, numbered, size, reading
        self.session = Session()
        self.lines: list[Message] = []
        self.known: list[tuple[Sequence[Message], PromptView]] = []

    def turn(self, asked: str, answer: str, heard: str, *, broken: bool = False) -> None:
        n = len(self.lines) // 2
        self.say("u", n, asked)
        window = self.lines[-self.size :]
        read = RequestView(window, redaction=self.redaction).view_of(self.session)
        self.known.append((window, prompt_view(read, WANTED)))
        sent = ROLE + delta(content=answer) if broken else stream_of(answer)
        said = TurnRecord(
            key=Key("t", "s"), window=window, answer=sent, at=float(n), view=read if self.reading else None
        )
        session = read.session if self.reading else self.session
        self.session = decode(encode(apply_turn(session, said, redaction=self.redaction)))
        self.say("a", n, heard)

    def say(self, role: str, n: int, text: str) -> None:
        fields = {"timestamp": 1_700_000_000 + n} if self.numbered else {}
        self.lines.append(message(f"{n if self.numbered else ''}{role}:{text}", **fields))


@settings(max_examples=60)
@given(turns(), st.booleans(), st.sampled_from([2, 3, 5, 99]), st.booleans())
def test_memory_is_as_if_the_client_had_sent_marks(
    said: list[Turn], numbered: bool, size: int, reading: bool
) -> None:
    clear = Talk(REDACTING, numbered=numbered, size=size, reading=reading)
    sent = Talk(UNREDACTED, numbered=numbered, size=size, reading=reading)
    text = REDACTING.rules.text
    for turn in said:
        clear.turn(turn.asked, turn.answer, heard_of(turn))
        sent.turn(text(turn.asked), text(turn.answer), marked(turn))
        assert clear.session.entries == sent.session.entries
        assert clear.session.unheard == sent.session.unheard
        assert not any(secret[:7].encode() in encode(clear.session) for secret in SECRETS)
        (window, own), (_, marks) = clear.known[-1], sent.known[-1]
        assert own.snapshot == marks.snapshot
        assert [m.role for m in own.window] == [m.role for m in marks.window]
        lines = {id(line): line for line in window}
        for line, other in zip(own.window, marks.window, strict=True):
            assert line.interrupted == other.interrupted
            assert line.interrupted or id(line) in lines or line == other  # an answer is told as it is held


@settings(max_examples=30)
@given(talks())
def test_words_with_nothing_to_hide_are_taken_as_they_are(requests: list[Any]) -> None:
    for before, request, _ in states(requests):
        redacted, plain = (
            RequestView(request.window, redaction=redaction).view_of(before)
            for redaction in (REDACTING, UNREDACTED)
        )
        assert redacted == plain and not redacted.redacted.own
        ours, theirs = prompt_view(redacted, WANTED), prompt_view(plain, WANTED)
        assert ours == theirs
        said = TurnRecord(key=Key("t", "s"), window=request.window, answer=stream_of("So."), at=1.0)
        assert apply_turn(before, said, redaction=REDACTING) == apply_turn(before, said)


def test_an_answer_that_the_engine_respells_is_told_as_held_where_that_hides_nothing() -> None:
    talk = Talk(REDACTING, numbered=False, size=99, reading=True)
    talk.turn("Which card?", f"It is {SECRETS[0]}, sir.", f"It is {SECRETS[0]}, sir")
    talk.turn("Really?", "So it is, sir.", "So it is, sir")
    talk.turn("Good.", "Bye.", "Bye.")
    assert [e.text for e in talk.session.entries[1::2]] == ["It is [card], sir.", "So it is, sir.", "Bye."]
    told = [line.text for line in talk.known[-1][1].window]
    assert told == ["Which card?", f"It is {SECRETS[0]}, sir", "Really?", "So it is, sir.", "Good."]


def test_an_answer_of_which_half_a_number_was_heard_is_held_without_it() -> None:
    talk = Talk(REDACTING, numbered=False, size=99, reading=True)
    talk.turn("Which card?", f"It is {SECRETS[0]}, sir.", "It is 4111 11")
    talk.turn("Stop.", "Sorry.", "Sorry.")
    assert [e.text for e in talk.session.entries] == ["Which card?", "It is", "Stop.", "Sorry."]
    assert talk.session.entries[1].original == "It is [card], sir."
    shown = talk.known[-1][1].window[1]
    assert (shown.text, shown.original) == ("It is 4111 11", "It is 4111 11 [card], sir.")


@pytest.mark.parametrize("line", ["It is 12 degrees.", "It is four.", "It is 4 111", "It is fine"])
def test_other_words_are_no_half_of_a_number(line: str) -> None:
    talk = Talk(REDACTING, numbered=False, size=99, reading=False)
    talk.turn("Which card?", f"It is {SECRETS[0]}, sir.", f"It is {SECRETS[0]}, sir.")
    talk.turn("How warm?", line, line)
    talk.turn("Well.", "So.", "So.")
    texts = [e.text for e in talk.session.entries]
    assert texts == ["Which card?", "It is [card], sir.", "How warm?", line, "Well.", "So."]


def test_a_broken_answer_ends_before_half_a_number() -> None:
    talk = Talk(REDACTING, numbered=False, size=99, reading=False)
    talk.turn("Which card?", "It is 4111 11", "It is 4111 11", broken=True)
    assert [e.text for e in talk.session.entries] == ["Which card?", "It is"]
    talk.turn("Stop.", "Sorry.", "Sorry.")
    assert [e.text for e in talk.session.entries] == ["Which card?", "It is", "Stop.", "Sorry."]


@pytest.mark.parametrize(
    ("text", "held"), [("It is 4111 1111 1111 1111", "It is [card]"), ("Mail ann@ex", "Mail")]
)
def test_a_whole_number_at_a_broken_end_is_a_mark(text: str, held: str) -> None:
    talk = Talk(REDACTING, numbered=False, size=99, reading=False)
    talk.turn("Which card?", text, text, broken=True)
    assert talk.session.entries[1].text == held


def test_a_short_number_at_a_broken_end_stays() -> None:
    talk = Talk(REDACTING, numbered=False, size=99, reading=False)
    talk.turn("Which table?", "It is table 12", "It is table 12", broken=True)
    assert talk.session.entries[1].text == "It is table 12"


def test_functions_and_their_results_are_told_as_the_client_has_them() -> None:
    called = {"name": "pay", "arguments": f'{{"card": "{SECRETS[0]}"}}'}
    window = [
        message(f"u:Take {SECRETS[0]}."),
        Message(role="assistant", content=None, others={"function_call": called}),
        Message(role="function", name="pay", content=f"Paid {SECRETS[0]}."),
    ]
    read = RequestView(window, redaction=REDACTING).view_of(Session())
    assert prompt_view(read, WANTED).window == window
    said = TurnRecord(key=Key("t", "s"), window=window, answer=stream_of("Done."), at=0.0, view=read)
    session = apply_turn(read.session, said, redaction=REDACTING)
    assert "4111" not in str(msgspec.to_builtins(session)) and len(session.entries) == 4
    again = RequestView(window, redaction=REDACTING).view_of(session)
    assert prompt_view(again, WANTED).window == window
