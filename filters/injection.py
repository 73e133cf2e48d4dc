"""Items of memory for filters, and their form in a prompt: fenced as data, a line each, not repeated."""

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

# A role, perhaps with a name, at the beginning of a line, as in a transcript.
_SPEAKER: Final = re.compile(
    r"[\W_]*(?:system|developer|user|human|assistant|ai|tool|function)\b[^:\uff1a]{0,64}[:\uff1a]",
    re.IGNORECASE,
)
# Full stops that need no space after them: of Chinese, Hindi, Urdu, Armenian, Amharic, Khmer and Burmese.
_STOPS: Final = "\u3002\uff01\uff61\u0964\u0965\u06d4\u0589\u1362\u17d4\u104b"
_ENDS: Final = f".!\u2026\uff0e{_STOPS}"
_END: Final = re.compile(
    rf" ?(?:[.!\u2026\uff0e]+[\"'\u201d\u2019\u00bb)]*(?=\s|\Z)|[{_STOPS}]|\n|\Z|(?<=[?\uff1f])(?=\s|\Z))"
)
_NOTED: Final = re.compile(r"\s*[\[(]")
# The ends of a sentence, and the marks of list items, after which a sentence begins.
_BEFORE: Final = (*".!?\u2026", "\n-", "\n*", "\n\u2022", "\n\u2013", "\n+")
_RIGHT_BEFORE: Final = (*_STOPS, "\uff1f", "\n")
_LABELS: Final = (":", "]", ")")
_LOOKED_BACK: Final = 8
_MOST_PLACES: Final = 100
_BY = {"user": "the caller said", "assistant": "you said"}
_LONGEST_NAME = 128


def fence(name: str, note: str, lines: Iterable[str]) -> str:
    """Returns the lines between ``<name>`` and ``</name>``, after the note; empty without lines.

    Each is defused: it is one line, cannot close the fence, and does not begin like a message with a role.
    """
    safe_lines = [defused(line) for line in lines]
    return "\n".join((f"<{name}>", note, *safe_lines, f"</{name}>")) if safe_lines else ""


def defused(line: str) -> str:
    """Returns a text as one line that is safe within a fence."""
    # With letters beyond ASCII, two calls of replace are a thousand times as fast as translate.
    plain = one_line(line, len(line)).replace("<", "\u2039").replace(">", "\u203a")
    return f"- {plain}" if _SPEAKER.match(plain) and not plain.startswith("- ") else plain


class Injected(Message, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A message with facts or summaries, which no speaker of this conversation said, in any role.

    No client can send one, and it looks like any other message on the wire: only its type differs.
    """


def instructions(messages: Sequence[Message]) -> list[Message]:
    """Returns the client's own instructions: the system and developer messages at the beginning."""
    return list(takewhile(lambda m: m.role in SYSTEM and not isinstance(m, Injected), messages))


def users(messages: Sequence[Message]) -> list[int]:
    """Returns the positions of the user's messages."""
    return [i for i, m in enumerate(messages) if m.role == "user" and not isinstance(m, Injected)]


def before_newest(messages: Sequence[Message], block: str) -> Sequence[Message]:
    """Returns the messages with a block before the newest words of the user; unchanged if one is missing."""
    newest = newest_user(messages)
    if newest is None or not block:
        return messages
    return [*messages[:newest], messages[newest].prefixed(f"{block}\n\n"), *messages[newest + 1 :]]


def one_line(value: str, max_length: int) -> str:
    """Returns the value as one line of at most ``max_length`` characters, without control characters.

    Spaces replace line breaks and control characters.
    """
    if not value.isprintable():
        value = " ".join(value.split())
        if not value.isprintable():  # control characters other than white space are rare
            blanks = {ord(c): " " for c in set(value) if not c.isprintable()}
            value = " ".join(value.translate(blanks).split())
    return value.strip()[:max_length].strip()


def comparable(text: str) -> str:
    """Returns the text casefolded, with single spaces, and without full stops and ``!`` at its end."""
    words = " ".join(_folded(text).split())
    return words.rstrip(f" {_ENDS}") or words


class Stated:
    """The statements in some texts: whole sentences and lines.

    Words within a longer sentence are no statement: "Offer vegetarian dishes" does not state "Vegetarian."
    Case, white space and the full stop may differ. In ``annotated`` texts, labels such as ``ann: `` and
    ``[10:30] `` may precede a statement, and a note in brackets may follow it.
    """

    def __init__(self, texts: Iterable[str], *, annotated: bool = False) -> None:
        self._texts = texts
        self._before = (*_BEFORE, *_LABELS) if annotated else _BEFORE
        self._annotated = annotated

    def contains(self, statement: str) -> bool:
        """Whether the texts contain a statement; only its first hundred occurrences are checked."""
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
        """The normalised texts, which are prepared at the first use."""
        return "\n" + "\n".join(map(_lines, self._texts))


def _lines(text: str) -> str:
    """Returns the text casefolded, with single spaces within its lines."""
    return "\n".join(" ".join(line.split()) for line in _folded(text).split("\n"))


def _folded(text: str) -> str:
    folded = text.casefold()
    return folded if folded.isascii() else unicodedata.normalize("NFC", folded)


class Remembered(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A turn of an earlier conversation, a fact about the user, or a part of a document.

    ``score`` is about 1 for a text with every word that the caller just said. ``source`` is the session or
    the document, and ``at`` the time at which it was said or added, in seconds since 1970. ``place`` is the
    user message, counted from 0, with which this conversation first told a fact; ``None`` is the newest one.
    ``follows`` is whether the turn was said right after the one before it in the list.
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
        """Returns one line, such as ``2026-11-12 the caller said: My dog is called Rex.``.

        The text has at most ``max_length`` characters.
        """
        words = one_line(self.text, max_length)
        if self.kind == "document":
            return f"{one_line(self.source or 'a document', max_length)}: {words}"
        day = "" if self.at is None else f"{datetime.fromtimestamp(self.at, time_zone(timezone)):%Y-%m-%d} "
        return f"{day}{'known' if self.kind == 'fact' else _BY.get(self.role or '', 'said')}: {words}"


class LastCall(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Notes on an earlier call, line by line; ``at`` is its end in seconds since 1970.

    ``record`` consists of the call's own name and its last turn. It is part of the prompt, as in
    ``(record 0123456789ab-7)``, and shows whether a prompt already contains the call.
    """

    record: str
    lines: tuple[str, ...]
    at: float

    def is_in(self, text: str) -> bool:
        """Whether a text contains the record of this call, at any turn."""
        return f"(record {self.record.partition('-')[0]}-" in text

    def as_block(self, introduction: str, timezone: str = "UTC") -> str:
        """Returns the lines in their fence, below the day and the record."""
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
        """Returns one line, such as ``[14:23] posted_tweet on x: Just shipped it``.

        The content has at most ``max_length`` characters.
        """
        time = datetime.fromtimestamp(self.at, time_zone(timezone))
        kind = one_line(self.interaction_type, _LONGEST_NAME)
        where = f" on {one_line(self.platform, _LONGEST_NAME)}" if self.platform else ""
        return f"[{time:%H:%M}] {kind}{where}: {one_line(self.content, max_length)}"
