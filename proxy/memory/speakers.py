"""Whose session it is, whether others speak in it, too, and who said what."""

import itertools
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from filters.injection import one_line
from filters.message import Message
from proxy.memory.session import Entry, Forgotten, Session, ShownFacts, TurnRef, message_of
from proxy.memory.speech import PROMPT_SOURCES
from proxy.memory.wording import text_hash

_LONGEST_NAME: Final = 64
NOBODY: Final = ""
"""Whose it is what was answered to words that are forgotten."""
_RESULTS = frozenset({"tool", "function"})
_MOST: Final = 16
_LONGEST: Final = 1000


def with_speakers(
    session: Session,
    user: str | None,
    window: Sequence[Message],
    told: ShownFacts | None,
    *,
    by_message: bool = False,
) -> Session:
    """The session with who speaks, and what a model was told of them; the newest request's word counts.

    What the engine says by itself is known, too. Whose it is says its first request: whom it names, or where
    it is its newest message alone that does (``by_message``), whoever is named first in its window.
    """
    session = prompted(session, window)
    spoken = next((message.user for message in reversed(window) if message.role == "user"), None)
    if session.user is None and user:
        person = _first(window) if by_message and spoken == user else user
        alias = spoken if spoken != user else None
        session = msgspec.structs.replace(session, user=person, alias=alias)
    elif user not in {None, session.user} and spoken in {None, session.alias} and not session.shared:
        session = msgspec.structs.replace(session, shared=True)
    if told is None or (session.shown_facts and told.at <= session.shown_facts.at):
        return session
    return msgspec.structs.replace(session, shown_facts=told)


def speaker(session: Session, entry: Entry) -> str | None:
    """Who said it: whom it or its request names, else the session's person; nobody, where others may have."""
    if entry.speaker not in {None, session.alias}:
        return entry.speaker
    return None if session.shared else session.user


def voices(session: Session, told: Sequence[Entry]) -> list[str | None]:
    """For each entry who said it, as far as that is known, where several speak; else nobody's name.

    Some engines tell speakers apart by their messages' names alone. A name here and there is nobody else.
    """
    said = [entry for entry in (*told, *session.entries) if entry.role == "user" and not entry.is_injected]
    persons = {speaker(session, entry) for entry in said if not _is_by_name(entry)} - {None}
    names = {entry.name for entry in said if _is_by_name(entry)}
    several = len(persons) > 1 or len(names) > 1
    return [_voice(session, entry) if several else None for entry in told]


def named(session: Session, told: Sequence[Entry]) -> list[Entry]:
    """The entries, each under the name of who said it, where several speak; else as they are."""
    pairs = zip(told, voices(session, told), strict=True)
    return [msgspec.structs.replace(entry, user=name) if name else entry for entry, name in pairs]


def label(role: str, name: str | None) -> str:
    """A role with a name behind it, on one line and without what would end it: ``user eve``."""
    shown = one_line((name or "").replace(":", " "), _LONGEST_NAME)
    return f"{role} {shown}" if shown else role


def _voice(session: Session, entry: Entry) -> str | None:
    if entry.role != "user" or entry.is_injected:
        return None
    return entry.name if _is_by_name(entry) else speaker(session, entry)


def _is_by_name(entry: Entry) -> bool:
    return entry.user is None and bool(entry.name)


def _first(window: Sequence[Message]) -> str | None:
    return next((message.user for message in window if message.role == "user" and message.user), None)


def guests(session: Session, entries: Iterable[Entry]) -> list[str | None]:
    """For each entry the other person whose it is; ``None`` where it is the session's own person's.

    What a user said is the speaker's whom the message names, or its request. What was answered is of him who
    spoke last before it in its turn, and a result goes with its call. ``entries`` are in order, and each turn
    whole.
    """
    own = {None, session.user, session.alias}
    unasked = None if session.forgotten is None else NOBODY
    place: TurnRef | None = None
    found: list[str | None] = []
    asking = calling = unasked
    for entry in entries:
        if entry.turn_ref != place:
            place, asking, calling = entry.turn_ref, unasked, unasked
        if entry.role == "user":
            asking = None if entry.speaker in own else entry.speaker
        elif entry.role not in _RESULTS:
            calling = asking
        found.append(calling if entry.role in _RESULTS else asking)
    return found


def supposed(person: str, entries: Sequence[Entry]) -> Session:
    """A person's session as its entries alone tell of it, and of what the engine calls that person.

    The first to speak is the session's person: under another name, unless his own is among those that speak.
    Words may have been forgotten, for all that the entries tell.
    """
    names = [entry.speaker for entry in entries if entry.role == "user" and not entry.is_injected]
    alias = names[0] if names and person not in names else None
    return Session(user=person, alias=alias, entries=tuple(entries), forgotten=Forgotten(at=0.0))


def prompted(session: Session, window: Sequence[Message]) -> Session:
    """The session that knows again what a window marks as no speech of the model's; the newest sixteen."""
    texts = (m.text for m in window if m.role == "assistant" and m.metadata and m.source in PROMPT_SOURCES)
    shown = [*dict.fromkeys(texts)][-_MOST:]
    seen = dict.fromkeys(text_hash(text) for text in shown if text.strip() and len(text) <= _LONGEST)
    new = [one for one in seen if one not in session.prompts]
    return msgspec.structs.replace(session, prompts=(*session.prompts, *new)[-_MOST:]) if new else session


def unprompted(session: Session, history: Sequence[Message]) -> list[Message]:
    """A history without what the engine said by itself, unless an answer that is held says the same."""
    known = set(session.prompts)
    if known:
        known.difference_update(text_hash(e.generated) for e in session.entries if e.role == "assistant")
    return [m for m in history if not (known and m.role == "assistant" and text_hash(m.text) in known)]


_LONGEST_LINE = 1_000_000


def transcript_lines(session: Session, *, naming: bool = False) -> list[str]:
    """The recent talk, a line each: ``user: Hello``; ``naming`` others than its person: ``user eve: Hello``.

    Tool results are no talk, nor is what a program put in the user's place.
    """
    others = guests(session, session.entries) if naming else itertools.repeat(None)
    said = (
        (message_of(entry), other if entry.role == "user" else None)
        for entry, other in zip(session.entries, others, strict=naming)
        if not entry.is_injected
    )
    return [f"{_label(m, other)}: {one_line(m.text, _LONGEST_LINE)}" for m, other in said if _is_talk(m)]


def _is_talk(message: Message) -> bool:
    return message.role != "tool" and bool(message.text.strip())


def _label(message: Message, other: str | None) -> str:
    return label(message.role, other)
