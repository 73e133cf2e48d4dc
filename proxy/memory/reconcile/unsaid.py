"""What the archive may still tell of the conversation at hand as said, and nobody heard."""

from collections.abc import Iterator
from functools import cached_property

from proxy.memory.reconcile.absence import gone
from proxy.memory.replay.replay import Replay
from proxy.memory.session.entry import Entry
from proxy.memory.session.session import Session


class Unsaid:
    """What was generated, or understood, in one session, and turned out not to be what was said.

    The archive has a turn as it was when the talk fell silent. That it was cut short, or taken back, is told
    by the window of the next one, and the archive learns it only after that.
    """

    def __init__(
        self, name: str | None = None, session: Session | None = None, replay: Replay | None = None
    ) -> None:
        self._name = name
        self._session = session or Session()
        self._replay = replay

    def holds(self, session: str | None, text: str) -> bool:
        """Whether a text that is found in a session is such a one."""
        return session is not None and session == self._name and text in self._texts

    @cached_property
    def _texts(self) -> frozenset[str]:
        """Prepared when it is asked for."""
        lost = _lost(self._replay) if self._replay else []
        left_out = {id(entry) for entry in lost}
        stands = {entry.text for entry in self._session.entries if id(entry) not in left_out}
        cut = {entry.generated for entry in self._session.entries}
        return frozenset(({entry.text for entry in lost} | cut) - stands)


def _lost(replay: Replay) -> list[Entry]:
    """Held entries that do not stand as they are, as the window shows."""
    return [*(replay.held[h] for h in gone(replay)), *_cut(replay)]


def _cut(replay: Replay) -> Iterator[Entry]:
    for position, place in enumerate(replay.places):
        entry = replay.held[place] if place >= 0 else None
        if entry and entry.role == "assistant" and entry.text != replay.told(position).text:
            yield entry
