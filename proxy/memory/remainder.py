"""What a session's messages do not tell of it: an import with it is exactly what was exported."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from filters.message import Message
from proxy.memory.interchange import engine_messages, entries_from_messages
from proxy.memory.session import Entry, Session, disorder

_ROLES: Final = frozenset({"user", "assistant", "tool", "function"})
_ENTRIES: Final = "entries"
_NOT_EXPORTED: Final = frozenset({"cold_count", "shown_facts"})
"""The messages include the cold part, and elsewhere the facts may not be known."""
_EXPORTED: Final = frozenset(
    field.encode_name for field in msgspec.structs.fields(Session) if field.name not in _NOT_EXPORTED
)
_ENTRY_FIELDS: Final = {
    field.name: field.encode_name for field in msgspec.structs.fields(Entry) if field.name != "role"
}


def remainder(session: Session) -> dict[str, Any]:
    """The fields of a whole session, in which ``entries`` has what each message would be misread for.

    Of each entry these are the fields that its message alone does not tell.
    """
    pairs = zip(
        session.entries, entries_from_messages(engine_messages(session.entries), now=0.0), strict=True
    )
    differences = [
        {
            encoded: value
            for name, encoded in _ENTRY_FIELDS.items()
            if (value := getattr(entry, name)) != getattr(imported, name)
        }
        for entry, imported in pairs
    ]
    exported = msgspec.structs.replace(session, entries=(), cold_count=0, shown_facts=None)
    fields: dict[str, Any] = msgspec.to_builtins(exported)
    return ({_ENTRIES: differences} if differences else {}) | fields


def restored(messages: Sequence[Message], fields: Mapping[str, msgspec.Raw]) -> Session:
    """The session that was exported as these messages and the fields of its ``remainder``.

    Raises ValueError where they do not belong together, and where turns go back. System messages are left
    out.
    """
    unknown = next((name for name in fields if name not in _EXPORTED), None)
    if unknown is not None:
        raise ValueError(f"Object contains unknown field `{unknown}`")
    own = {**fields}
    differences = msgspec.json.decode(own.pop(_ENTRIES, b"[]"), type=list[dict[str, Any]])
    if len(messages) != len(differences):
        raise ValueError("it has as many entries as there are messages")
    entries = tuple(
        msgspec.convert({**msgspec.to_builtins(entry), **more, "role": entry.role}, Entry)
        for entry, more in zip(entries_from_messages(messages, now=0.0), differences, strict=True)
        if entry.role in _ROLES
    )
    session = msgspec.json.decode(msgspec.json.encode(own), type=Session)
    session = msgspec.structs.replace(session, entries=entries)
    if (fault := disorder(session)) is not None:
        raise ValueError(fault)
    return session
