"""A session as it is held: what was said and heard, life by life."""

from typing import Any, Final, TypeVar

import msgspec

from proxy.memory.faults import Unreadable
from proxy.memory.session.agents import Agents
from proxy.memory.session.entry import Entry
from proxy.memory.session.forgotten import Forgotten
from proxy.memory.session.newest import Newest
from proxy.memory.session.order import going_back, risen
from proxy.memory.session.segment import START, Reach, Segment
from proxy.memory.session.told import Told

T = TypeVar("T")

UNREADABLE: Final = (Unreadable, msgspec.DecodeError, UnicodeDecodeError)
"""What reading one session raises where its bytes are of no use, though the store answers."""
_FIRST: Final = Reach(0, 0)


class Session(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What is held of one conversation, without system messages. Times are in seconds since 1970."""

    entries: tuple[Entry, ...] = ()
    """The newest, in order; older ones have moved to the cold part, ``moved`` of them so far."""
    life: int = 0
    """Each time that the engine begins anew, with turns counted from the start, is another life."""
    turns: int = 0
    """The number that the next turn of this life will bear; one that is withdrawn takes its number along."""
    moved: int = 0
    user: str | None = None
    """The session's first user."""
    began: int | float | None = None
    """The first time that the engine wrote to a message of this life, as it wrote it."""
    created: float = 0.0
    updated: float = 0.0
    newest: Newest | None = None
    unheard: tuple[Entry, ...] = ()
    """The last answers of this life that no window showed: one that comes late may show them yet."""
    state: dict[str, Any] = {}
    """The client's own."""
    agents: Agents | None = None
    summaries: tuple[Segment, ...] = ()
    """They stand for the oldest turns, in order."""
    model: str | None = None
    """Which one the session last asked."""
    trimmed: bool = False
    """Whether a summary is due because the last prompt had no room for all that no summary covers."""
    room: int = 0
    """For how many messages of the user it had room then."""
    learnt: Reach = START
    """The last turn that was looked at for facts."""
    told: Told | None = None
    """Which facts the prompts begin with."""
    alias: str | None = None
    """What the engine calls ``user``, where that is another name."""
    shared: bool = False
    """Whether others have spoken whom nothing tells from ``user``."""
    scale: float = 0.0
    """How many tokens the model counts for each that is estimated, 0 where it has not said."""
    forgotten: Forgotten | None = None
    """What was deleted and an engine may still replay."""
    prompts: tuple[str, ...] = ()
    """The imprints of what the engine was seen to say by itself, against a silence or for a failure."""

    @property
    def older(self) -> bool:
        """Whether there was talk before the oldest entry that is held here: moved away, or forgotten."""
        return self.moved > 0 or (self.forgotten is not None and self.forgotten.whole)

    @property
    def reach(self) -> Reach:
        """The last turn that a summary covers."""
        return self.summaries[-1].reach if self.summaries else START


def anew(session: Session, former: Session) -> bool:
    """Whether a session was made anew under its name since it was ``former``."""
    return former.created > 0 and session.created != former.created


def ordered(session: Session) -> Session:
    """The session with its turns in order: earlier versions may have written some that go back."""
    if disorder(session) is None:
        return session
    entries = tuple(risen(session.entries, _FIRST))
    last = max(entries[-1].place if entries else START, Reach(session.life, session.turns - 1), START)
    return msgspec.structs.replace(
        session,
        entries=entries,
        life=last.life,
        turns=last.turn + 1,
        summaries=tuple(risen(session.summaries, START, last)),
    )


def disorder(session: Session) -> str | None:
    """Which of a session's turns goes back, or lies beyond all that there were; ``None`` where none does."""
    last = max((session.life, session.turns - 1), START)
    if session.life < 0 or session.turns < 0:
        return "'life' and 'turns' count from 0"
    told = (("entry", session.entries, _FIRST), ("summary", session.summaries, START))
    for name, placed, least in told:
        back = going_back(placed, least)
        if back is not None:
            return f"{name} {back + 1} goes back behind the turn before it"
        if placed and (placed[-1].life, placed[-1].turn) > last:
            return f"{name} {len(placed)} lies beyond 'life' and 'turns'"
    return None


def encode(session: Session) -> bytes:
    """A session as bytes for a store."""
    return msgspec.msgpack.encode(session)


class _Person(msgspec.Struct, frozen=True):
    user: str | None = None


def person_of(blob: bytes) -> str | None:
    """Whose a session is, in a fraction of the time that all of it takes; raises msgspec.DecodeError."""
    return _decoded(blob, _Person).user


def decode(blob: bytes) -> Session:
    """A session from a store's bytes, its turns in order; raises msgspec.DecodeError for anything else."""
    return ordered(_decoded(blob, Session))


def _decoded(blob: bytes, kind: type[T]) -> T:
    try:
        return msgspec.msgpack.decode(blob, type=kind)
    except (UnicodeDecodeError, RecursionError) as error:
        raise msgspec.DecodeError(f"it holds no session: {type(error).__name__}") from None
