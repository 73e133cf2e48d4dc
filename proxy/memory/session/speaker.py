"""Whose session it is, whether others speak in it, too, and who said what."""

from collections.abc import Sequence
from typing import Final

import msgspec

from filters.line import one_line
from filters.message import Message
from proxy.memory.session.entry import Entry
from proxy.memory.session.prompts import prompted
from proxy.memory.session.session import Session
from proxy.memory.session.told import Told

_LONGEST_NAME: Final = 64


def knowing(
    session: Session,
    user: str | None,
    window: Sequence[Message],
    told: Told | None,
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
    if told is None or (session.told and told.at <= session.told.at):
        return session
    return msgspec.structs.replace(session, told=told)


def speaker(session: Session, entry: Entry) -> str | None:
    """Who said it: whom it or its request names, else the session's person; nobody, where others may have."""
    if entry.speaker not in {None, session.alias}:
        return entry.speaker
    return None if session.shared else session.user


def voices(session: Session, told: Sequence[Entry]) -> list[str | None]:
    """For each entry who said it, as far as that is known, where several speak; else nobody's name.

    Some engines tell speakers apart by their messages' names alone. A name here and there is nobody else.
    """
    said = [entry for entry in (*told, *session.entries) if entry.role == "user" and not entry.put_in]
    persons = {speaker(session, entry) for entry in said if not _is_by_name(entry)} - {None}
    names = {entry.name for entry in said if _is_by_name(entry)}
    several = len(persons) > 1 or len(names) > 1
    return [_voice(session, entry) if several else None for entry in told]


def named(session: Session, told: Sequence[Entry]) -> list[Entry]:
    """The entries, each under the name of who said it, where several speak; else as they are."""
    pairs = zip(told, voices(session, told), strict=True)
    return [msgspec.structs.replace(entry, user=name) if name else entry for entry, name in pairs]


def by(role: str, name: str | None) -> str:
    """A role with a name behind it, on one line and without what would end it: ``user eve``."""
    shown = one_line((name or "").replace(":", " "), _LONGEST_NAME)
    return f"{role} {shown}" if shown else role


def _voice(session: Session, entry: Entry) -> str | None:
    if entry.role != "user" or entry.put_in:
        return None
    return entry.name if _is_by_name(entry) else speaker(session, entry)


def _is_by_name(entry: Entry) -> bool:
    return entry.user is None and bool(entry.name)


def _first(window: Sequence[Message]) -> str | None:
    return next((message.user for message in window if message.role == "user" and message.user), None)
