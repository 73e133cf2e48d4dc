"""What memory sees of a request, and a session that it is laid beside."""

from collections.abc import Sequence
from typing import NamedTuple

from filters.message import Message
from proxy.memory.redaction.view import UNREDACTED, RedactedView, WindowRedaction
from proxy.memory.replay.beside import beside
from proxy.memory.replay.replay import Replay
from proxy.memory.session.retry import UNTOLD, Asking, Attempt
from proxy.memory.session.session import Session
from proxy.memory.speech.speech import Speech, spoken


class Reading(NamedTuple):
    """A session as a turn read it, and the client's window beside it: what is recorded goes on from there.

    ``version`` is the one that a write replaces, 0 where nothing is held yet. ``window`` is the client's own,
    and ``veiled`` what was laid there of it. ``replay`` is ``None`` where nothing was said yet.
    """

    session: Session
    version: int
    window: Sequence[Message]
    veiled: RedactedView
    said: Speech
    replay: Replay | None

    def of(self, session: Session) -> Replay | None:
        """The window beside a session, where that holds the same talk."""
        own = self.session
        return self.replay if session.entries is own.entries and session.newest is own.newest else None


class Sight(NamedTuple):
    """What memory sees of a request: its window, less what a ``veil`` hides, and what it says of itself."""

    window: Sequence[Message]
    attempt: Attempt = UNTOLD
    veil: WindowRedaction = UNREDACTED

    def beside(self, session: Session, version: int = 0) -> Reading:
        """A session with the window laid beside it."""
        session, veiled = self.veil.beside(session, self.window)
        said = spoken(veiled.window)
        replay = beside(session, said, Asking(self.attempt)) if session.entries else None
        return Reading(session, version, self.window, veiled, said, replay)
