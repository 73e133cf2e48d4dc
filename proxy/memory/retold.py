"""The recent talk as text, for whoever is told of it in a prompt."""

import itertools

from filters.line import one_line
from filters.message import Message
from proxy.memory.session.entry import message_of
from proxy.memory.session.guests import guests
from proxy.memory.session.session import Session
from proxy.memory.session.speaker import by

_LONGEST = 1_000_000


def retold(session: Session, *, naming: bool = False) -> list[str]:
    """The recent talk, a line each: ``user: Hello``; ``naming`` others than its person: ``user eve: Hello``.

    Tool results are no talk, nor is what a program put in the user's place.
    """
    others = guests(session, session.entries) if naming else itertools.repeat(None)
    said = (
        (message_of(entry), other if entry.role == "user" else None)
        for entry, other in zip(session.entries, others, strict=naming)
        if not entry.put_in
    )
    return [f"{_by(m, other)}: {one_line(m.text, _LONGEST)}" for m, other in said if _is_talk(m)]


def _is_talk(message: Message) -> bool:
    return message.role != "tool" and bool(message.text.strip())


def _by(message: Message, other: str | None) -> str:
    return by(message.role, other)
