"""A window that continues the last one gets the same result on the fast path as by alignment."""

from typing import Any

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given, settings

from filters.message import Message
from proxy.memory.merge.continuation import can_be_continued
from proxy.memory.session import Session, decoded_lines, encoded_lines, goes_on
from proxy.memory.stores.store import Key
from proxy.memory.turn_record import TurnRecord, apply_turn, record_without_media, without_view
from proxy.memory.view import ChainNeeds, RequestView, SessionView, prompt_view
from tests.peers.fake_upstream import stream_of

KEY = Key("default", "s1")


def line(role: str, text: str, number: int | None) -> Message:
    named = {} if number is None else {"turn_id": number, "timestamp": 1_790_000_000_000 + number}
    return Message(role=role, content=text, **named)  # type: ignore[arg-type]


STEP = st.fixed_dictionaries(
    {
        "said": st.sampled_from(
            ["", "Yes.", "Yes.", "Yes. Please.", "<continue>", "{calm}", "I am {very calm}"]
        ),
        "answered": st.sampled_from(["", "", "Fine.", "Fine. Then I shall do that."]),
        "heard": st.sampled_from(["all", "all", "all", "all", "half", "none", "other", "marked", "twice"]),
        "number": st.sampled_from([0, 0, 0, 1, -1, None]),
        "window": st.sampled_from([1, 2, 3, 5, 8, 20]),
        "again": st.sampled_from([False, False, False, True]),
        "changed": st.sampled_from([None, None, None, None, "edited", "dropped", "prompt", "call", "anew"]),
        "system": st.integers(0, 2),
        "user": st.sampled_from([None, None, "ann", "ann", "bob"]),
        "by_message": st.booleans(),
        "named": st.sampled_from([None, None, "ann"]),
        "ended": st.sampled_from([0.5, 0.5, 0.0, None]),
        "at": st.sampled_from([3.0, 3.0, 3.0, 0.5]),
    }
)


@given(st.lists(STEP, max_size=9), st.booleans(), st.booleans())
@settings(max_examples=400, deadline=None)
def test_a_window_beside_the_last_one_is_seen_as_beside_the_session(
    steps: list[dict[str, Any]], numbered: bool, sliding: bool
) -> None:
    follow(steps, numbered=numbered, sliding=sliding)


ODD: list[dict[str, Any]] = [
    {"user": None},
    {"user": "bob"},
    {"user": "bob", "named": "bob"},
    {"named": "bob"},
    {"number": None},
    {"number": -1},
    {"number": 1},
    {"own": 1},
    {"own": 2},
    {"own": 9},
    {"again": True},
    {"heard": "half"},
    {"heard": "marked"},
    {"heard": "renumbered"},
    {"heard": "unnumbered"},
    {"heard": "twice"},
    {"heard": "none"},
    {"said": "Question 2."},
    {"said": "{calm}"},
    {"said": "I am {very calm}"},
    {"ended": 0.0},
    {"ended": None},
    {"at": 0.5},
    {"changed": "edited"},
    {"changed": "call"},
    {"changed": "anew"},
    {"system": 0},
]
ORDINARY = {
    "said": "",
    "answered": "",
    "heard": "all",
    "number": 0,
    "window": 20,
    "again": False,
    "changed": None,
    "system": 1,
    "user": "ann",
    "by_message": False,
    "named": None,
    "ended": 0.5,
    "at": 3.0,
}


@pytest.mark.parametrize("numbered", [True, False])
@pytest.mark.parametrize("sliding", [True, False])
@pytest.mark.parametrize("place", [1, 2, 3, 5])
@pytest.mark.parametrize("odd", ODD)
def test_so_is_a_talk_in_which_one_turn_is_odd(
    odd: dict[str, Any], place: int, sliding: bool, numbered: bool
) -> None:
    """So are two of them, one after the other."""
    for following in ({}, {"user": "bob"}, {"number": -1}):
        steps = [ORDINARY] * 9
        steps[place], steps[place + 1] = ORDINARY | odd, ORDINARY | following
        follow(steps, numbered=numbered, sliding=sliding)


def follow(steps: list[dict[str, Any]], *, numbered: bool, sliding: bool) -> None:
    """Records a call; each window has the same result on the fast path as by alignment."""
    session, shown, lines, turn, names = Session(), b"", list[Message](), 0, 0
    for step, each in enumerate(steps):
        turn += 1 if each["number"] is None else max(0, 1 + each["number"])
        number = turn if numbered and each["number"] is not None else None
        number = each.get("own", number) if numbered else None
        if not each["again"]:
            words = line("user", each["said"] or f"Question {step}.", number)
            marks = {"source": "asr", "user": each["named"]}
            lines.append(msgspec.structs.replace(words, metadata=marks) if each["named"] else words)
        if each["changed"] == "edited" and lines:
            lines[len(lines) // 2] = msgspec.structs.replace(lines[len(lines) // 2], content="Edited.")
        elif each["changed"] == "dropped" and len(lines) > 2:
            del lines[len(lines) // 2]
        elif each["changed"] == "prompt":
            lines.insert(-1, Message(role="assistant", content="Hello?", metadata={"source": "silence"}))
        elif each["changed"] == "call":
            names += 1
            call = {"id": f"c{names}", "type": "function", "function": {"name": "look", "arguments": "{}"}}
            lines[-1:-1] = [
                Message(role="assistant", content=None, tool_calls=[call]),
                Message(role="tool", content="{}", tool_call_id=f"c{names}"),
            ]
        elif each["changed"] == "anew":
            lines = lines[-1:]
        system = [Message(role="system", content=f"Be kind {i}.") for i in range(each["system"])]
        window = [*system, *lines[-(8 if sliding else each["window"]) :]]
        text = each["answered"] or f"The answer to question {step}."
        record = TurnRecord(
            key=KEY,
            window=window,
            answer=stream_of(text if each["ended"] is not None else ""),
            at=step + each["at"],
            turn_id=number,
            user=each["user"],
            user_from_message=each["by_message"],
            ended_at=step + each["at"] + each["ended"] if each["ended"] else 0.0,
        )
        session, shown = recorded(session, shown, record)
        lines += heard(each["heard"], text, number)


def recorded(session: Session, shown: bytes, turn: TurnRecord) -> tuple[Session, bytes]:
    """The session after a turn, and its lines: with them the turn's window is seen as it is without."""
    request = RequestView(turn.window, at=turn.at)
    plain, view = request.view_of(session), request.view_of(session, 0, shown)
    without = {"speech": None, "alignment": None}
    assert msgspec.structs.replace(plain, **without) == msgspec.structs.replace(view, **without)
    assert as_lists(plain.speech) == as_lists(view.speech)
    if view.alignment is None:
        assert plain.alignment is None
    else:
        aligned = msgspec.structs.replace(view.alignment, unchanged=0)
        assert as_lists(plain.alignment) == as_lists(aligned)
    for needs in (ChainNeeds(), ChainNeeds(history=True)):
        one, other = prompt_view(plain, needs), prompt_view(view, needs)
        assert (one.snapshot, [*one.window]) == (other.snapshot, [*other.window])
    after = apply_turn(session, msgspec.structs.replace(turn, view=view))
    assert after == apply_turn(session, msgspec.structs.replace(turn, view=plain))
    condensed = view.condensed()
    short = msgspec.structs.replace(turn, view=condensed, window=condensed.window)
    assert after == apply_turn(session, short)
    assert record_without_media(short).size >= len(condensed.line_bytes) if condensed.is_condensed else True
    assert latest_line_bytes(after, view) == latest_line_bytes(after, condensed)
    changed = msgspec.structs.replace(session, entries=session.entries[:-1])
    assert apply_turn(changed, short) == apply_turn(changed, turn)
    assert apply_turn(session, without_view(short)) == apply_turn(session, turn)
    return after, latest_line_bytes(after, view)


def latest_line_bytes(session: Session, view: SessionView) -> bytes:
    """Returns what a session stores of the latest recorded window."""
    return view.line_bytes if can_be_continued(session, view.speech, view.alignment) else b""


@pytest.mark.parametrize("window", range(1, 9))
def test_a_talk_that_repeats_itself_is_seen_so_too(window: int) -> None:
    session, shown, lines = Session(), b"", list[Message]()
    for at in range(1, 9):
        lines.append(line("user", "Yes.", None))
        record = TurnRecord(
            key=KEY, window=lines[-window:], answer=stream_of("Fine."), at=float(at), ended_at=at + 0.5
        )
        session, shown = recorded(session, shown, record)
        lines.append(line("assistant", "Fine.", None))


def test_messages_that_turn_out_to_be_pieces_of_an_answer_are_joined() -> None:
    first = [line("assistant", "Hello", None), line("assistant", "there.", None), line("user", "Hi.", None)]
    record = TurnRecord(key=KEY, window=first, answer=stream_of("Hello there. Fine?"), at=1.0, ended_at=1.5)
    session, shown = recorded(Session(), b"", record)
    second = [*first, line("assistant", "Hello there. Fine?", None), line("user", "Yes.", None)]
    recorded(session, shown, msgspec.structs.replace(record, window=second, at=2.0))


def as_lists(value: Any) -> dict[str, Any]:
    """The fields of a speech or an alignment: which kind of sequence each is does not matter."""
    fields = msgspec.structs.asdict(value)
    return {name: [*one] if isinstance(one, list | tuple | range) else one for name, one in fields.items()}


def heard(how: str, text: str, number: int | None) -> list[Message]:
    """What an engine shows of an answer."""
    answer = line("assistant", text, number)
    marks = {"source": "llm"}
    shown = {
        "half": [line("assistant", " ".join(text.split()[:2]), number)],
        "none": [],
        "other": [line("assistant", "Something else.", number)],
        "marked": [msgspec.structs.replace(answer, metadata=marks | {"interrupted": True})],
        "renumbered": [line("assistant", text, (number or 0) + 1)],
        "unnumbered": [line("assistant", text, None)],
        "twice": [answer, answer],
    }
    return shown.get(how, [msgspec.structs.replace(answer, metadata=marks)])


@pytest.mark.parametrize("numbered", [True, False])
@pytest.mark.parametrize("window", [3, 7, 100])
def test_of_an_ordinary_talk_all_but_the_newest_lines_are_known_to_be_unchanged(
    window: int, numbered: bool
) -> None:
    session, shown, lines, unchanged = Session(), b"", list[Message](), []
    for turn in range(1, 9):
        number = turn if numbered else None
        lines.append(line("user", f"Question {turn}.", number))
        view = RequestView(lines[-window:], at=float(turn)).view_of(session, 0, shown)
        unchanged.append(view.alignment.unchanged if view.alignment else 0)
        record = TurnRecord(
            key=KEY,
            window=lines[-window:],
            answer=stream_of("Fine."),
            at=float(turn),
            turn_id=number,
            view=view,
        )
        session = apply_turn(session, record)
        shown = latest_line_bytes(session, view)
        lines.append(line("assistant", "Fine.", number))
    assert unchanged == [min(window, 2 * turn - 1) - 2 if turn > 1 else 0 for turn in range(1, 9)]


WORDS = st.one_of(st.sampled_from(["Yes.", "No."]), st.text(st.sampled_from("\x83\xa4\xa7role"), max_size=4))
LINES = st.lists(st.builds(line, st.sampled_from(["user", "assistant"]), WORDS, st.none()), max_size=5)


@given(former=LINES, window=LINES, new=st.integers(1, 3), cut=st.integers(0, 5))
def test_lines_go_on_from_others_as_bytes_where_they_do_as_values(
    former: list[Message], window: list[Message], new: int, cut: int
) -> None:
    for lines in (window, [*former[cut:], *window[:new]]):
        older = lines[:-new]
        continued = bool(older) and former[-len(older) :] == older
        encoded = encoded_lines(lines)
        assert goes_on(encoded, encoded_lines(former), encoded_lines(lines[-new:])) is continued
        assert decoded_lines(encoded, len(lines)) == lines


def test_a_field_that_is_a_message_itself_is_no_line() -> None:
    """Its bytes end the line that has it."""
    question = line("user", "Hi.", None)
    quoting = msgspec.structs.replace(
        line("user", "Ho.", None), others={"quoted": msgspec.to_builtins(question)}
    )
    answer, more = line("assistant", "Fine.", None), line("user", "Yes.", None)
    record = TurnRecord(key=KEY, window=[quoting], answer=stream_of("Fine."), at=1.0, ended_at=1.5)
    session, shown = recorded(Session(), b"", record)
    window = [question, answer, more]
    assert goes_on(encoded_lines(window), encoded_lines([quoting]), encoded_lines(window[-2:]))
    recorded(session, shown, msgspec.structs.replace(record, window=window, at=2.0))


@pytest.mark.parametrize("role", ["user", "tool"])
def test_words_that_repeat_the_answer_are_not_taken_for_it(role: str) -> None:
    question, more = line("user", "Hello?", None), line("user", "Are you there?", None)
    record = TurnRecord(key=KEY, window=[question], answer=stream_of("Hello?"), at=1.0, ended_at=1.5)
    session, shown = recorded(Session(), b"", record)
    window = [question, line(role, "Hello?", None), more]
    recorded(session, shown, msgspec.structs.replace(record, window=window, at=2.0))


def test_lines_that_cannot_be_encoded_go_on_from_none() -> None:
    large = msgspec.structs.replace(line("user", "Yes.", None), metadata={"size": 2**70})
    assert not encoded_lines([large])
    assert not goes_on(b"", b"", b"")
