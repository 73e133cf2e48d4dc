"""A session as a body of JSON carries it in: the same means the same, whichever way it comes."""

import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from filters.message import Message
from proxy.errors import RequestError, TooLarge
from proxy.memory.interchange import Summary, imported, with_summaries
from proxy.memory.redaction.view import WindowRedaction
from proxy.memory.remainder import restored
from proxy.memory.session import Session, decode, encode
from proxy.rest.endpoint import ID
from proxy.turn import request
from proxy.turn.identity import decode_raw, identifier

OWN: Final = "turnkeeper"
"""What an export holds beside Agora's own shape, so that an import leaves the very same session."""
Fields = Mapping[str, msgspec.Raw]
State = dict[str, Any]
_LARGEST_STATE: Final = 8_000
"""How many bytes a state may have, as JSON: it is read with each turn."""


_MADE_OF: Final = ("id", "user", "contents", "summaries", "state", OWN)


def non_null(fields: Fields) -> dict[str, msgspec.Raw]:
    """The keys that hold anything."""
    return {name: raw for name, raw in fields.items() if bytes(raw) != b"null"}


def check_keys(fields: Fields) -> Fields:
    """The same keys; raises RequestError for one that nobody knows."""
    unknown = next((name for name in fields if name not in _MADE_OF), None)
    if unknown is not None:
        expected = ", ".join(_MADE_OF)
        raise RequestError(f"'{unknown}': unknown key; there are: {expected}.", param=unknown)
    return fields


def session_from(fields: Fields, veil: WindowRedaction) -> Session:
    """The session that a body tells of, as it may be held; raises RequestError, which names the key."""
    if "contents" not in fields:
        raise RequestError("'contents' is missing; send an array of messages.", param="contents")
    messages, _ = request.read_messages(fields["contents"], "contents")
    session = _session(veil.window(messages), fields.get(OWN))
    if OWN not in fields:
        session = _with_summaries(session, fields.get("summaries"))
    try:
        session = decode(encode(session))  # so that what is written can be read
    except (OverflowError, RecursionError, ValueError):
        fault = "'contents' holds a number too large, or is nested too deeply."
        raise RequestError(fault, param="contents") from None
    return veil.redaction.session(_with_person(session, fields))


def id_field(fields: Fields, name: str) -> str | None:
    """The id under a key; ``None`` where none is given."""
    raw = fields.get(name)
    return None if raw is None or bytes(raw) == b"null" else checked_id(decode_raw(raw), name)


def checked_id(value: Any, name: str) -> str:
    """A value as an id; raises RequestError for what is none."""
    found = identifier(value)
    if found is None:
        raise RequestError(f"'{name}' must be {ID}.", param=name)
    return found


def _with_person(session: Session, fields: Fields) -> Session:
    """The session with the person and the state that stand beside its contents, if any do."""
    user, state = id_field(fields, "user"), fields.get("state")
    return msgspec.structs.replace(
        session,
        user=session.user if user is None else user,
        state=session.state if state is None else state_from(bytes(state), "state"),
    )


def _session(messages: Sequence[Message], own: msgspec.Raw | None) -> Session:
    """Exactly what was exported, where the export says so; else what the messages tell."""
    if own is None:
        return imported(messages, now=time.time())
    try:
        return restored(messages, msgspec.json.decode(own, type=dict[str, msgspec.Raw]))
    except (ValueError, RecursionError) as error:
        fault = f"'{OWN}' does not belong to these 'contents' ({error}); leave it out to import them alone."
        raise RequestError(fault, param=OWN) from None


def _with_summaries(session: Session, written: msgspec.Raw | None) -> Session:
    try:
        carried_along = msgspec.json.decode(written or b"[]", type=list[Summary])
        return with_summaries(session, carried_along)
    except (ValueError, RecursionError):  # msgspec's errors are ValueErrors
        fault = "'summaries' must be an array of {text, messages} for no more messages than 'contents' has."
        raise RequestError(fault, param="summaries") from None


def state_from(written: bytes, param: str | None = None) -> State:
    """A state as it may be held; raises RequestError, which names ``param``, and TooLarge."""
    try:
        given = msgspec.json.decode(written, type=State)
        decode(encode(Session(state=given)))  # so that what is written can be read
    except (ValueError, OverflowError, RecursionError):  # msgspec's errors are ValueErrors
        about = f"'{param}'" if param else "The state"
        fault = f"{about} must be a JSON object, with no number beyond 64 bits."
        raise RequestError(fault, param=param) from None
    return check_state(given, param)


def check_state(state: State, param: str | None = None) -> State:
    """Returns a state that is small enough; raises TooLarge, which names ``param``."""
    if len(msgspec.json.encode(state)) > _LARGEST_STATE:
        about = f"'{param}'" if param else "A state"
        raise TooLarge(f"{about} has at most {_LARGEST_STATE} bytes.", param=param)
    return state
