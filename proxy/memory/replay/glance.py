"""A window that shows the newest that is held, line by line: most windows do, and a glance tells."""

from collections.abc import Callable, Sequence

from filters.message import Message
from filters.role import newest_user
from proxy.memory.replay.line import CUT, NEW, WORDS, Line, kinship, number_of
from proxy.memory.session.entry import Entry
from proxy.memory.speech.wording import goes_on, same


def straight(
    entries: Sequence[Entry], spoken: Sequence[Message], *, moved: bool, again: Callable[[], bool]
) -> list[int] | None:
    """The places of a window that shows, line by line, the newest that is held, and perhaps one line more.

    It may show whole turns more, where turns are numbered: those of calls that are yet to be recorded.
    Answers may be spelt otherwise, and the last that is held may be one of which less was heard. What the
    window shows before all of it is older, where the oldest has ``moved`` to the cold part. ``again`` tells
    whether it is the newest window once more, which is dear to tell.
    """
    count, size = len(spoken), len(entries)
    if not spoken or not entries or spoken[-1].role != "user":
        return None
    # Where the talk repeats itself, either may fit: a window that is longer than what is held says more.
    once, more = size - count - 1, size - count + 1
    starts = [size - count, once, more] if count <= size else [size - count, more, once]
    for start in (*starts, size - count + _ahead(entries, spoken)):
        first, older = max(start, 0), max(-start, 0)
        shown = min(count - older, size - first)
        if (older and not moved) or shown <= 0:
            continue
        fits = runs(entries[first : first + shown], spoken[older:] if older else spoken)
        if fits and (start != once or again()):
            return [*[NEW] * older, *range(first, first + shown), *[NEW] * (count - older - shown)]
    return _revising(entries, spoken, moved=moved)


def _revising(entries: Sequence[Entry], spoken: Sequence[Message], *, moved: bool) -> list[int] | None:
    """The same where the newest words are an early or a later form of the newest that are held.

    What stands before both is held line by line, be it as often as a talk repeats itself.
    """
    last, words = newest_user(entries), spoken[-1]
    if not last or number_of(words) is not None or not _forms(entries[last].text, words.text):
        return None
    first, older = max(last - len(spoken) + 1, 0), max(len(spoken) - 1 - last, 0)
    shown = zip(spoken[older:], entries[first:last], strict=False)
    if (older and not moved) or any(kinship(Line(m), Line(e)) < CUT for m, e in shown):
        return None
    return [*[NEW] * older, *range(first, last), NEW]


def _forms(one: str, other: str) -> bool:
    return goes_on(one, other) or goes_on(other, one)


def _ahead(entries: Sequence[Entry], spoken: Sequence[Message]) -> int:
    """How many of the window's last lines are of turns behind all that is held."""
    newest = entries[-1].engine_turn
    if newest is None:
        return 0
    known = (i for i, message in enumerate(reversed(spoken)) if (number_of(message) or 0) <= newest)
    return next(known, 0)


def runs(entries: Sequence[Entry], spoken: Sequence[Message]) -> bool:
    """Whether a window shows just these entries; of the last, less may have been heard."""
    last = len(entries) - 1
    for i, entry in enumerate(entries):
        message = spoken[i]
        if entry.role != message.role:
            return False
        if entry.engine_turn != message.turn_id and entry.engine_turn != number_of(message):
            return False
        if entry.content != message.content or entry.tool_calls or message.tool_calls or entry.tool_call_id:
            if i == last:
                return last > 0 and _answers_as(message, entry)
            if not (_respelt(message, entry) or _calls_again(message, entry)):
                return False
    return True


def _respelt(message: Message, entry: Entry) -> bool:
    """Whether the replayed line is the held answer to the letter, where turns are not numbered."""
    if entry.role != "assistant" or entry.engine_turn is not None or entry.tool_calls or message.tool_calls:
        return False
    return same(message.text, entry.text)


def _calls_again(message: Message, entry: Entry) -> bool:
    """Whether the replayed line is the held call, or the held result of one."""
    called = entry.tool_calls or entry.tool_call_id
    return bool(called) and kinship(Line(message), Line(entry)) >= WORDS


def _answers_as(message: Message, entry: Entry) -> bool:
    """Whether the replayed line is the held answer; where turns are numbered, in whatever words."""
    spoken = not (entry.tool_calls or message.tool_calls)
    if entry.role == "assistant" and entry.engine_turn is not None and spoken:
        return message.source in {entry.source, None}
    return kinship(Line(message), Line(entry)) > 0


def shows_again(entries: Sequence[Entry], spoken: Sequence[Message]) -> bool:
    """Whether a window ends with the newest words that are held, and what stands before them.

    Answers that are yet to be confirmed it may leave out.
    """
    last = newest_user(entries)
    before = entries[: 0 if last is None else last + 1]
    confirmed = [entry for entry in before if not entry.pending]
    return any(
        len(shown) == len(spoken) and runs(shown, spoken)
        for shown in (before[-len(spoken) :], confirmed[-len(spoken) :])
    )
