"""Whether entries still say what they said when a summary was made of them."""

import hashlib
from collections.abc import Sequence

import msgspec

from proxy.memory.session.entry import Entry


def fingerprint(entries: Sequence[Entry]) -> str:
    """Sixteen hex digits that stand for what entries say, call and return, and for their turns."""
    told = [essence(entry) for entry in entries]
    return hashlib.sha256(msgspec.json.encode(told)).hexdigest()[:16]


def essence(entry: Entry) -> tuple[object, ...]:
    """What of an entry a summary rests on: its turn, its words, its calls."""
    calls = [str(call.get("function")) for call in entry.tool_calls or ()]
    return (*entry.place, entry.role, entry.text, calls, entry.tool_call_id)
