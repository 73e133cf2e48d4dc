"""A session as it is held: what was said and heard, life by life."""

from typing import Any, Final, TypeVar

import msgspec
from msgspec import UNSET

from filters.message import Content, Message, epoch_seconds
from proxy.memory.faults import Unreadable
from proxy.memory.session.agents import Agents
from proxy.memory.session.forgotten import Forgotten
from proxy.memory.session.newest import Newest
from proxy.memory.session.order import going_back, risen
from proxy.memory.session.segment import START, Reach, Segment
from proxy.memory.session.told import Told
from proxy.memory.speech.functions import former
from proxy.memory.speech.wording import imprint

T = TypeVar("T")

UNREADABLE: Final = (Unreadable, msgspec.DecodeError, UnicodeDecodeError)
"""What reading one session raises where its bytes are of no use, though the store answers."""
REASONING: Final = "reasoning_content"
"""The field of a message that brings a model's reasoning back to it; most models refuse it."""
COMMAND: Final = "command"
"""The source of what a program put in through the engine's interface."""
_FIRST: Final = Reach(0, 0)
# Before 2001 no voice engine spoke: a smaller number counts from something else than 1970.
_CLOCKS_FROM: Final = 1e9
_DAY: Final = 86_400.0


class Entry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One message as it was heard.

    ``turn`` counts from 0 within a ``life`` and never goes back; ``engine_turn`` is the number that the
    engine gave it, where it numbers its turns. ``timestamp`` is as the engine wrote it. ``original`` is all
    that the model generated where the caller heard less. ``pending`` is an answer that no later request has
    confirmed or cut yet: it is held as generated; ``broken``, if its stream ended before the answer did.
    """

    role: str
    turn: int
    life: int = 0
    engine_turn: int | None = None
    content: Content = None
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    timestamp: int | float | None = None
    source: str | None = None
    user: str | None = None
    asker: str | None = None
    """Whom the request named that asked with these words, where they name nobody."""
    interrupted: bool = False
    interrupt_timestamp: int | float | None = None
    original: str | None = None
    pending: bool = False
    broken: bool = False
    reasoning: str | None = None
    """What the model thought before it answered, where that is kept."""
    replaced: str | None = None
    """The imprint of the words that somebody put these in the place of: an engine may replay those yet."""
    recorded: float = 0.0
    """When it was first recorded, in seconds since 1970."""

    @property
    def at(self) -> float:
        """When it was said, in seconds since 1970: as the engine says where that can be, else as recorded."""
        told = epoch_seconds(self.timestamp)
        can_be = told is not None and _CLOCKS_FROM <= told <= self.recorded + _DAY
        return told if told is not None and can_be else self.recorded

    @property
    def place(self) -> Reach:
        """Its turn."""
        return Reach(self.life, self.turn)

    @property
    def speaker(self) -> str | None:
        """Who said it, as far as its request or the message tells."""
        return self.asker or self.user

    @property
    def put_in(self) -> bool:
        """Whether a program spoke in the user's place: nobody said it."""
        return self.role == "user" and self.source == COMMAND

    @property
    def text(self) -> str:
        """What was said: the content, or its text parts joined by a line break."""
        return self.content if isinstance(self.content, str) else Message(role="", content=self.content).text

    def replaces(self, text: str) -> bool:
        """Whether these words were put in the place of a text."""
        return self.replaced is not None and self.replaced == imprint(text)

    @property
    def generated(self) -> str:
        """All that the model said, heard or not."""
        return self.text if self.original is None else self.original


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


def message_of(entry: Entry) -> Message:
    """An entry in Agora's own shape, as an engine would replay it."""
    # Spelt out, because a turn may bring back all that an engine has dropped: no loop over names is as fast.
    message = Message(
        role=entry.role,
        content=entry.content,
        name=UNSET if entry.name is None else entry.name,
        tool_calls=UNSET if entry.tool_calls is None else entry.tool_calls,
        tool_call_id=UNSET if entry.tool_call_id is None else entry.tool_call_id,
        turn_id=entry.turn if entry.engine_turn is None else entry.engine_turn,
        timestamp=UNSET if entry.timestamp is None else entry.timestamp,
        metadata=_metadata(entry) or UNSET,
        others={} if entry.reasoning is None else {REASONING: entry.reasoning},
    )
    return former(message) if entry.tool_calls or entry.tool_call_id else message


def _metadata(entry: Entry) -> dict[str, Any]:
    marks: dict[str, Any] = {} if entry.source is None else {"source": entry.source}
    if entry.user is not None:
        marks["user"] = entry.user
    if entry.interrupt_timestamp is not None:
        marks["interrupt_timestamp"] = entry.interrupt_timestamp
    if entry.original is not None:
        marks["original"] = entry.original
    if entry.interrupted:
        marks["interrupted"] = True
    return marks


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
