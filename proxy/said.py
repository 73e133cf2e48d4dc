"""One turn as it went by, for memory to take in."""

from collections.abc import Sequence

import msgspec

from filters.message import Message
from proxy.memory.session.retry import UNTOLD, Attempt
from proxy.memory.session.told import Told, placed
from proxy.memory.sight import Reading
from proxy.memory.store import Key


class Said(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One turn as it went by: the client's window, and the answer's bytes.

    ``at`` is when the request arrived, in seconds since 1970. ``user`` is who called, where the request says
    so, and ``by_message`` whether it is its newest message that does; ``turn`` is the engine's number of the
    turn it asks for, and ``model`` what was asked. ``room`` is how many messages of the user it could be
    shown, where some had to be left out: ``shown`` are the messages, ``tools`` their tools as JSON, and
    ``told`` the facts among them. ``again`` is whether the model was asked again within it: it has counted
    more than was shown. ``read`` is what the turn read of the session, where it could; ``attempt`` is what
    the request says of itself, and ``ended`` when the answer did.
    """

    key: Key
    user: str | None = None
    by_message: bool = False
    turn: int | None = None
    model: str | None = None
    window: Sequence[Message]
    answer: bytes
    at: float
    room: int | None = None
    told: Told | None = None
    read: Reading | None = None
    shown: Sequence[Message] = ()
    tools: bytes = b""
    again: bool = False
    attempt: Attempt = UNTOLD
    ended: float = 0.0

    @property
    def telling(self) -> Told | None:
        """The facts that were told, each with its place in the prompt."""
        return placed(self.told, self.shown)


def alone(said: Said) -> Said:
    """A turn that has to wait, without what it read: its session will have moved on by then."""
    return said if said.read is None else msgspec.structs.replace(said, read=None)
