"""A place in a trace that others began, or that begins here (W3C Trace Context)."""

import re
import secrets
from typing import Final, Self

import msgspec

HEADER: Final = "traceparent"
_PARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")


class Lineage(msgspec.Struct, frozen=True):
    """One turn's ids: of the trace, of whose child the turn is, and of the question to the model."""

    trace: int
    parent: int | None
    question: int
    sampled: bool = True

    @classmethod
    def of(cls, header: str | None) -> Self:
        """The trace that a ``traceparent`` names; a new one where it names none."""
        found = _PARENT.fullmatch(header or "")
        if not found:
            return cls(secrets.randbits(128) or 1, None, secrets.randbits(64) or 1)
        sampled = bool(int(found[3], 16) & 1)
        return cls(int(found[1], 16), int(found[2], 16), secrets.randbits(64) or 1, sampled)

    @property
    def onward(self) -> str:
        """The ``traceparent`` for the model."""
        return f"00-{self.trace:032x}-{self.question:016x}-{self.sampled:02x}"
