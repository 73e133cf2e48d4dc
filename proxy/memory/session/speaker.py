"""Whose session it is, and whether others speak in it, too."""

from collections.abc import Sequence

import msgspec

from filters.message import Message
from proxy.memory.session.session import Session
from proxy.memory.session.told import Told


def knowing(
    session: Session,
    user: str | None,
    window: Sequence[Message],
    told: Told | None,
    *,
    by_message: bool = False,
) -> Session:
    """The session with who speaks, and what a model was told of them; the newest request's word counts.

    Whose it is says its first request: whom it names, or where it is its newest message alone that does
    (``by_message``), whoever is named first in its window.
    """
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


def _first(window: Sequence[Message]) -> str | None:
    return next((message.user for message in window if message.role == "user" and message.user), None)
