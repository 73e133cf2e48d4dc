"""Whose session it is, and whether others speak in it, too."""

from collections.abc import Sequence

import msgspec

from filters.message import Message
from proxy.memory.session import Session
from proxy.memory.told import Told


def knowing(session: Session, user: str | None, window: Sequence[Message], told: Told | None) -> Session:
    """The session with who speaks, and what a model was told of them; the newest request's word counts."""
    spoken = next((message.user for message in reversed(window) if message.role == "user"), None)
    if session.user is None and user:
        alias = spoken if spoken != user else None
        session = msgspec.structs.replace(session, user=user, alias=alias)
    elif user not in {None, session.user} and spoken in {None, session.alias} and not session.shared:
        session = msgspec.structs.replace(session, shared=True)
    if told is None or (session.told and told.at <= session.told.at):
        return session
    return msgspec.structs.replace(session, told=told)
