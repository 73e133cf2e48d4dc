"""Messages as Agora tells them once a talk is over: with when each was spoken, and what nobody spoke."""

from collections.abc import Sequence

import msgspec

from filters.message import Message, epoch_seconds
from proxy.memory.session.entry import COMMAND

_SPOKEN = "speech_start_ms"
_PUT_IN = "[think API injected]"
_EARLIEST, _LATEST = 1e9, 1e11


def uttered(messages: Sequence[Message]) -> list[Message]:
    """Messages with their times of speech, where such are told, as when they were said.

    Words of a user without a time of speech, where others have one, were put in through the engine's
    interface, and nobody said them; so were those that say so themselves.
    """
    timed = any(_SPOKEN in message.others for message in messages)
    return [_uttered(message, timed=timed) for message in messages]


def plausible(timestamp: object) -> float | None:
    """A time of an event in seconds since 1970; ``None`` for what is none."""
    seconds = epoch_seconds(timestamp)
    return seconds if seconds is not None and _EARLIEST <= seconds < _LATEST else None


def _uttered(message: Message, *, timed: bool) -> Message:
    at = message.others.get(_SPOKEN)
    if plausible(at) is not None:
        message = msgspec.structs.replace(message, timestamp=at)
    if message.role == "user" and not message.metadata and _is_put_in(message, timed=timed):
        message = msgspec.structs.replace(message, metadata={"source": COMMAND})
    return message


def _is_put_in(message: Message, *, timed: bool) -> bool:
    return (timed and _SPOKEN not in message.others) or message.text.startswith(_PUT_IN)
