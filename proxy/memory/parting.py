"""Results whose call has slid out of a window: a model takes them with their call alone."""

from collections.abc import Sequence

from filters.group import call_ids
from filters.message import Message
from proxy.memory.replay import Replay
from proxy.memory.session import calls


def parted(replay: Replay) -> dict[int, int]:
    """The results that a window shows without their held call: where they are spoken, and where held."""
    if not any(message.role == "tool" for message in replay.spoken):
        return {}
    called: set[str] = set()
    found: dict[int, int] = {}
    for i, (message, place) in enumerate(zip(replay.spoken, replay.places, strict=True)):
        called.update(call_ids(message))
        if message.role == "tool" and place >= 0 and message.tool_call_id not in called:
            asked = any(calls(entry, message.tool_call_id) for entry in replay.held[:place])
            found |= {i: place} if asked else {}
    return found


def without(window: Sequence[Message], replay: Replay, parted: dict[int, int]) -> list[Message]:
    """The window less some lines of its speech."""
    lost = {id(replay.spoken[i]) for i in parted}
    return [message for message in window if id(message) not in lost]
