"""A session as a body of JSON: what an import takes in and an export gives out."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from filters.message import Message, weight
from proxy.clock import wall_time
from proxy.errors import RequestError, TooLarge
from proxy.http.body import BodyLimit, structure_size
from proxy.memory.interchange import (
    Summary,
    contents,
    remainder_fields,
    restore_session,
    session_from_messages,
    summaries,
    with_summaries,
)
from proxy.memory.redacted_view import WindowRedaction
from proxy.memory.session import Entry, Session, decode, encode, ordered
from proxy.memory.speech import MAX_SPEECH
from proxy.rest.endpoint import checked_id
from proxy.turn.request import check_count, decode_raw, mend_json, read_messages

Fields = Mapping[str, msgspec.Raw]
State = dict[str, Any]

_NULL: Final = msgspec.Raw(b"null")
_REMAINDER: Final = "turnkeeper"
"""The key of what an export holds beside Agora's shape, so that an import makes the very same session."""
_KEYS: Final = ("id", "user", "contents", "summaries", "state", _REMAINDER)
_MAX_MESSAGES: Final = 10_000
# What was heard of an answer, and all that was generated.
_LARGEST_MESSAGE: Final = 2 * MAX_SPEECH
LARGEST: Final = BodyLimit(16_000_000, structure=1_500_000, setting=None)
"""How large an import may be."""
_LARGEST_STATE: Final = 8_000
"""The size of a state as JSON, in bytes, at most: it is read with each turn."""


def non_null(fields: Fields) -> dict[str, msgspec.Raw]:
    """The fields that are not null."""
    return {name: raw for name, raw in fields.items() if raw != _NULL}


def check_keys(fields: Fields) -> None:
    """Raises RequestError for an unknown key."""
    for name in fields:
        if name not in _KEYS:
            raise RequestError(f"'{name}': unknown key; available: {', '.join(_KEYS)}.", param=name)


def id_field(fields: Fields, name: str) -> str | None:
    """The id under a key, or ``None``; raises RequestError for what cannot be one."""
    raw = fields.get(name)
    return None if raw is None or raw == _NULL else checked_id(decode_raw(raw), name)


def session_from(fields: Fields, redaction: WindowRedaction) -> Session:
    """The session of a body, redacted; raises RequestError, which names the key."""
    if "contents" not in fields:
        raise RequestError("'contents' is missing; send an array of messages.", param="contents")
    check_count(fields["contents"], "contents", _MAX_MESSAGES, "a session of at most {limit} can be imported")
    _check_structure(fields["contents"])
    messages, _ = read_messages(fields["contents"], "contents")
    for i, each in enumerate(messages):
        if weight(each) > _LARGEST_MESSAGE:
            path = f"contents[{i}]"
            raise TooLarge(f"'{path}' has more than {_LARGEST_MESSAGE} characters of speech.", param=path)
    session = _session(redaction.window(messages), fields)
    try:
        session = decode(encode(session))  # so that what is written can be read
    except (OverflowError, RecursionError, ValueError):
        message = "'contents' holds a number too large, or is nested too deeply."
        raise RequestError(message, param="contents") from None
    user, state = id_field(fields, "user"), fields.get("state")
    session = msgspec.structs.replace(
        session,
        user=session.user if user is None else user,
        state=session.state if state is None else state_from(bytes(state), "state"),
    )
    return redaction.rules.session(session)


def _check_structure(raw: msgspec.Raw) -> None:
    """Raises TooLarge for a message with more outside of its texts than a turn may have."""
    limit = BodyLimit(LARGEST.size)
    try:
        items = msgspec.json.decode(raw, type=list[msgspec.Raw])
    except (msgspec.DecodeError, RecursionError):  # read_messages says what is wrong
        return
    for item in map(bytes, items):
        if len(item) > limit.structure and structure_size(item) > limit.structure:
            raise limit.structure_error()


def _session(messages: Sequence[Message], fields: Fields) -> Session:
    """Exactly what was exported, where the body has its remainder; else what the messages tell."""
    own = fields.get(_REMAINDER)
    if own is not None:
        try:
            return restore_session(messages, msgspec.json.decode(own, type=dict[str, msgspec.Raw]))
        except (ValueError, RecursionError) as error:
            message = f"'{_REMAINDER}' does not belong to these 'contents' ({error})"
            raise RequestError(f"{message}; leave it out to import them alone.", param=_REMAINDER) from None
    session = session_from_messages(messages, now=wall_time())
    try:
        carried = msgspec.json.decode(fields.get("summaries", b"[]"), type=list[Summary])
        return with_summaries(session, carried)
    except (ValueError, RecursionError):  # msgspec's errors are ValueErrors
        message = "'summaries' must be an array of {text, messages} for no more messages than 'contents' has."
        raise RequestError(message, param="summaries") from None


def export_fields(session: Session, entries: tuple[Entry, ...]) -> dict[str, Any]:
    """The body of an export, of a session and all of its entries."""
    session = ordered(msgspec.structs.replace(session, entries=entries, cold_count=0))
    return {**session_fields(session), _REMAINDER: remainder_fields(session)}


def session_fields(session: Session) -> dict[str, Any]:
    """A session in Agora's shape."""
    return {"contents": contents(session.entries), "summaries": summaries(session, session.entries)}


def state_from(body: bytes, param: str | None = None) -> State:
    """A session's state; raises RequestError and TooLarge, which name ``param``."""
    try:
        state = _state(body)
        check_state(state, param)  # first: of a megabyte the rest takes as long as a piece of a stream
        msgspec.msgpack.encode(state)
        decode(encode(Session(state=state)))  # so that what is written can be read
    except (ValueError, OverflowError, RecursionError):  # msgspec's errors are ValueErrors
        name = f"'{param}'" if param else "The state"
        message = f"{name} must be a JSON object, with no number beyond 64 bits."
        raise RequestError(message, param=param) from None
    return state


def _state(body: bytes) -> State:
    """A JSON object; half a character in it is no error, as in a chat request. Raises ValueError."""
    try:
        return msgspec.json.decode(body, type=State)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        return msgspec.json.decode(mend_json(body), type=State)


def check_state(state: State, param: str | None = None) -> None:
    """Raises TooLarge, which names ``param``, for a state that is too large."""
    if len(msgspec.json.encode(state)) > _LARGEST_STATE:
        name = f"'{param}'" if param else "A state"
        raise TooLarge(f"{name} has at most {_LARGEST_STATE} bytes.", param=param)
