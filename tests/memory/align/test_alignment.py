"""Alignment finds the entry of each line without comparing all pairs, with the same result."""

from collections.abc import Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from filters.message import Message
from proxy.memory.align.anchors import align_lines
from proxy.memory.align.line import Line, similarity
from proxy.memory.session import Entry

WORDS = ("Yes", "yes.", "Hi", "Hi there", "there Hi", "a b", "a b c d", "d c b a", "a b x d", "", "…")
CALL = [{"id": "x", "type": "function", "function": {"name": "f", "arguments": "{}"}}]


def scores(kin: list[list[int]], width: int, *, open_end: bool, older: bool) -> list[list[int]]:
    """The best of the rest, for each pair of positions."""
    height = len(kin)
    end = (2, 3) if open_end else (6, 5)
    free = open_end and older
    score = [
        [-end[0] * max(height - i - free, 0) - end[1] * (width - j) for j in range(width + 1)]
        for i in range(height + 1)
    ]
    for i in range(height - 1, -1, -1):
        row, below, likeness = score[i], score[i + 1], kin[i]
        for j in range(width - 1, -1, -1):
            best = max(row[j], row[j + 1] - 5, below[j] - 6)
            if likeness[j]:
                best = max(best, likeness[j] + below[j + 1])
            row[j] = best
        if older:
            row[0] = max(row[0], below[0] - 2)
    return score


def plainly(
    window: Sequence[Line], held: Sequence[Line], *, at_start: bool, at_end: bool, older: bool
) -> list[tuple[int, int]]:
    """Each line is compared with each."""
    kin = [[similarity(line, other) for other in held] for line in window]
    score = scores(kin, len(held), open_end=at_end, older=older)
    found = []
    i, j = 0, max(range(len(score[0])), key=lambda j: (score[0][j], j)) if at_start else 0
    while i < len(window) and j < len(held):
        best = score[i][j]
        if at_start and best == score[i + 1][j] - (2 if older and not j else 6):
            i += 1
        elif kin[i][j] and best == kin[i][j] + score[i + 1][j + 1]:
            found.append((i, j))
            i, j = i + 1, j + 1
        elif best == score[i][j + 1] - 5:
            j += 1
        elif best == score[i + 1][j] - 6:
            i += 1
        else:
            break
    return found


@st.composite
def talks(draw: st.DrawFn) -> tuple[list[Entry], list[Message]]:
    """Draws a session and a window with a few texts that resemble each other."""
    texts = st.sampled_from(draw(st.lists(st.sampled_from(WORDS), min_size=2, max_size=4, unique=True)))
    roles = st.sampled_from(["user", "assistant", "assistant"])
    entries = st.builds(
        lambda role, text, original, pending: Entry(
            role=role, turn=0, content=text, original=original, pending=pending and role == "assistant"
        ),
        roles,
        texts,
        st.none() | texts,
        st.booleans(),
    )
    said = st.builds(lambda role, text: Message(role=role, content=text), roles, texts)
    calls = st.just(Message(role="assistant", content=None, tool_calls=CALL))
    called = st.just(Entry(role="assistant", turn=0, tool_calls=CALL))
    held = draw(st.lists(entries | entries | called, max_size=14))
    return held, draw(st.lists(said | said | calls, max_size=14))


def one(held: str, replayed: str, **more: object) -> tuple[list[Entry], list[Message]]:
    entry = Entry(role="assistant", turn=0, content=held, **more)
    return [entry], [Message(role="assistant", content=replayed)]


@settings(max_examples=1000)
@example(talk=one("a b", "a b c d"), moved=False)
@example(talk=one("a b c d", "a b"), moved=False)
@example(talk=one("a b c d", "d c b a"), moved=False)
@example(talk=one("a b c d", "a b x d", pending=True), moved=False)
@example(talk=one("", "…", original="…"), moved=False)
@given(talk=talks(), moved=st.booleans())
def test_what_is_found_is_what_comparing_each_with_each_finds(
    talk: tuple[list[Entry], list[Message]], moved: bool
):
    held, window = talk

    def found() -> list[int]:
        return align_lines([*map(Line, held)], [*map(Line, window)], moved=moved)

    with pytest.MonkeyPatch.context() as plain:
        plain.setattr("proxy.memory.align.anchors.gap_pairs", plainly)
        expected = found()
    assert found() == expected
