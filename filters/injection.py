"""The memories that filters inject, and their form in a prompt: fenced as data, one line each, no repeats."""

import re
import unicodedata
from collections.abc import Iterable, Sequence
from datetime import datetime
from functools import cached_property
from itertools import takewhile
from typing import Final, Literal

import msgspec

from filters.message import SYSTEM, Message, newest_user
from filters.option_types import time_zone

# A role, perhaps with a name, as in the lines of a transcript.
_SPEAKER: Final = re.compile(
    r"[\W_]*(?:system|developer|user|human|assistant|ai|tool|function)\b[^:\uff1a]{0,64}[:\uff1a]",
    re.IGNORECASE,
)
# Full stops of Chinese, Hindi, Urdu, Armenian, Amharic, Khmer and Burmese, which always end a sentence.
_STOPS: Final = "\u3002\uff01\uff61\u0964\u0965\u06d4\u0589\u1362\u17d4\u104b"
_ENDS: Final = f".!\u2026\uff0e{_STOPS}"
_END: Final = re.compile(
    rf" ?(?:[.!\u2026\uff0e]+[\"'\u201d\u2019\u00bb)]*(?=\s|\Z)|[{_STOPS}]|\n|\Z|(?<=[?\uff1f])(?=\s|\Z))"
)
_NOTED: Final = re.compile(r"\s*[\[(]")
# The ends of sentences, and the marks of list items, after which another sentence may begin.
_BEFORE: Final = (*".!?\u2026", "\n-", "\n*", "\n\u2022", "\n\u2013", "\n+")
_RIGHT_BEFORE: Final = (*_STOPS, "\uff1f", "\n")
_LABELS: Final = (":", "]", ")")
_LOOKED_BACK: Final = 8
_MOST_PLACES: Final = 100
_BY = {"user": "the caller said", "assistant": "you said"}
_LONGEST_NAME = 128


def fence(name: str, note: str, lines: Iterable[str]) -> str:
    """A block of lines between ``<name>`` and ``</name>``, after a note; empty if there are no lines.

    Each line is ``defused``.
    """
    safe = [defused(line) for line in lines]
    return "\n".join((f"<{name}>", note, *safe, f"</{name}>")) if safe else ""


def defused(line: str) -> str:
    """A line that is safe in a fence: a single line, which cannot close the fence or imitate a speaker."""
    # With letters beyond ASCII, two replacements take a thousandth of the time of ``translate``.
    plain = one_line(line, len(line)).replace("<", "\u2039").replace(">", "\u203a")
    return f"- {plain}" if _SPEAKER.match(plain) and not plain.startswith("- ") else plain


class Injected(Message, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A message with injected facts or summaries, which is not part of the conversation, whatever its role.

    No client can send one, and it looks like any other message on the wire: only its type differs.
    """


def instructions(messages: Sequence[Message]) -> list[Message]:
    """The client's own instructions: the system and developer messages with which the conversation begins."""
    return list(takewhile(lambda m: m.role in SYSTEM and not isinstance(m, Injected), messages))


def users(messages: Sequence[Message]) -> list[int]:
    """The indexes of the user's messages, without injected ones."""
    return [i for i, m in enumerate(messages) if m.role == "user" and not isinstance(m, Injected)]


def before_newest(messages: Sequence[Message], block: str) -> Sequence[Message]:
    """The messages with a block before the user's newest words; unchanged where either is missing."""
    newest = newest_user(messages)
    if newest is None or not block:
        return messages
    return [*messages[:newest], messages[newest].prefixed(f"{block}\n\n"), *messages[newest + 1 :]]


def one_line(value: str, max_length: int) -> str:
    """The value as one line of at most ``max_length``: line breaks and control characters become spaces."""
    if not value.isprintable():
        value = " ".join(value.split())
        if not value.isprintable():  # rare: control characters other than line breaks
            blanks = {ord(c): " " for c in set(value) if not c.isprintable()}
            value = " ".join(value.translate(blanks).split())
    return value.strip()[:max_length].strip()


def comparable(text: str) -> str:
    """The text for comparison: case-folded, with single spaces, and without a full stop at its end."""
    words = " ".join(_folded(text).split())
    return words.rstrip(f" {_ENDS}") or words


class Stated:
    """The statements in some texts, for finding out whether a fact is already in a prompt.

    A statement must be a whole sentence: "Offer vegetarian dishes" does not state "Vegetarian." Case, white
    space and the full stop may differ. In ``annotated`` texts, a label such as ``ann: `` or ``[10:30] `` may
    precede a statement, and a note in brackets may follow it.
    """

    def __init__(self, texts: Iterable[str], *, annotated: bool = False) -> None:
        self._texts = texts
        self._before = (*_BEFORE, *_LABELS) if annotated else _BEFORE
        self._annotated = annotated

    def contains(self, statement: str) -> bool:
        """Whether the texts state this; only its first hundred occurrences are checked."""
        words = _lines(statement).strip().rstrip(f" {_ENDS}")
        place = -1
        for _ in range(_MOST_PLACES if words else 0):
            place = self._text.find(words, place + 1)
            if place < 0:
                return False
            before, end = self._text[max(0, place - _LOOKED_BACK) : place], place + len(words)
            lead = before.rstrip(" ")
            begins = lead.endswith(_RIGHT_BEFORE) or (lead != before and lead.endswith(self._before))
            if begins and (
                _END.match(self._text, end) or (self._annotated and _NOTED.match(self._text, end))
            ):
                return True
        return False

    @cached_property
    def _text(self) -> str:
        """The normalised texts, computed at the first use."""
        return "\n" + "\n".join(map(_lines, self._texts))


def _lines(text: str) -> str:
    """The text case-folded, with single spaces within its lines."""
    return "\n".join(" ".join(line.split()) for line in _folded(text).split("\n"))


def _folded(text: str) -> str:
    folded = text.casefold()
    return folded if folded.isascii() else unicodedata.normalize("NFC", folded)


class Remembered(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A turn of an earlier call, a fact about the caller, or a part of a document.

    ``score`` is about 1 for a text with every one of the caller's newest words. ``source`` is the session or
    the document, and ``at`` is when the text was said or added, in seconds since 1970. ``place`` is the
    number of the user message in this call, counted from 0, with which a fact was first injected, unless that
    is the newest one. ``follows`` is whether a turn came directly after the one before it in the list.
    """

    kind: Literal["turn", "fact", "document"]
    text: str
    score: float = 1.0
    role: str | None = None
    source: str | None = None
    at: float | None = None
    place: int | None = None
    follows: bool = False

    def as_line(self, timezone: str = "UTC", max_length: int = 1_000_000) -> str:
        """One line: ``2026-11-12 the caller said: My dog is called Rex.``; the text cut at ``max_length``."""
        words = one_line(self.text, max_length)
        if self.kind == "document":
            return f"{one_line(self.source or 'a document', max_length)}: {words}"
        day = "" if self.at is None else f"{datetime.fromtimestamp(self.at, time_zone(timezone)):%Y-%m-%d} "
        return f"{day}{'known' if self.kind == 'fact' else _BY.get(self.role or '', 'said')}: {words}"


class LastCall(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The lines about an earlier call, which ended ``at``, in seconds since 1970.

    ``record`` is the call's name and its last turn. A prompt that contains it, as in ``(record
    0123456789ab-7)``, already has these lines.
    """

    record: str
    lines: tuple[str, ...]
    at: float

    def is_in(self, text: str) -> bool:
        """Whether a text already has the lines about this call."""
        return f"(record {self.record.partition('-')[0]}-" in text

    def as_block(self, introduction: str, timezone: str = "UTC") -> str:
        """The lines in their fence, after the introduction, the day and the record."""
        day = datetime.fromtimestamp(self.at, time_zone(timezone))
        note = f"{introduction} It was on {day:%Y-%m-%d}. (record {self.record})"
        return fence("last_conversation", note, self.lines)


class Episode(msgspec.Struct, frozen=True, kw_only=True):
    """One interaction of an agent, on any platform. ``at`` is in seconds since 1970."""

    at: float
    interaction_type: str
    content: str
    platform: str | None = None

    def as_line(self, timezone: str = "UTC", max_length: int = 1_000_000) -> str:
        """One line: ``[14:23] posted_tweet on x: Just shipped it``; the content is cut at ``max_length``."""
        time = datetime.fromtimestamp(self.at, time_zone(timezone))
        kind = one_line(self.interaction_type, _LONGEST_NAME)
        where = f" on {one_line(self.platform, _LONGEST_NAME)}" if self.platform else ""
        return f"[{time:%H:%M}] {kind}{where}: {one_line(self.content, max_length)}"
