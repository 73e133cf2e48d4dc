"""A session's lives as an engine tells of them: an agent joins, leaves, and what was said is told.

Events may come late, twice and in any order: each leaves what it would have left in time, once.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UNSET

from filters.message import LARGEST, Message
from proxy.memory.reconcile.history import retold
from proxy.memory.reconcile.utterance import plausible, uttered
from proxy.memory.session.agents import Agents
from proxy.memory.session.entry import Entry
from proxy.memory.session.prompts import unprompted
from proxy.memory.session.session import Session
from proxy.memory.speech.functions import modern
from proxy.memory.speech.speech import is_speech

_FORMERLY = "agora"
_MOST_NOTICES = 32
_MOST_AGENTS = 16
_SLACK = 10.0
_FIELDS = frozenset({"role", "content", "turn_id", "timestamp", "metadata"})
_BEFORE = 2.0


class Agent(msgspec.Struct, frozen=True, kw_only=True):
    """One run of an agent. Times are in seconds since 1970, ``None`` where they are not known."""

    id: str
    start: float | None = None
    stop: float | None = None


def noticed(session: Session, notice: str) -> bool:
    """Whether this notice was taken already."""
    return notice in _told_of(session)[0].notices


def noting(session: Session, notice: str, agent: Agent, life: int | None) -> Session:
    """The session that knows of a notice, and which life its agent has."""
    known, state = _told_of(session)
    notices = (*known.notices, notice)[-_MOST_NOTICES:]
    lives = known.lives | ({agent.id: life} if agent.id and life is not None else {})
    kept = dict([*lives.items()][-_MOST_AGENTS:])
    return msgspec.structs.replace(session, agents=Agents(notices, kept), state=state)


def joined(session: Session, agent: Agent) -> tuple[Session, int | None]:
    """The session once an agent has joined, and the agent's life: a new one, unless it has begun already."""
    life = _life_of(session, agent)
    if life is None:
        session = _begun(session)
        life = session.life
    return session, life


def left(session: Session, agent: Agent) -> tuple[Session, int | None]:
    """The session once an agent has left: what is said from now on is another life's."""
    life = _life_of(session, agent)
    if life == session.life and not _went_on(session, agent):
        session = _begun(session)
    return session, life


def told(
    session: Session, agent: Agent, contents: Sequence[Message], *, now: float
) -> tuple[Session, int | None]:
    """The session once an engine has told all that was said in an agent's life, and that life.

    What the proxy has seen itself keeps its marks; what it has not seen is added in its place, but for what
    the engine says by itself. Where a later life has begun, and the agent's own is not held, nothing changes.
    An agent that has stopped says no more: that life is over.
    """
    spoken = [modern(message) for message in unprompted(session, contents) if is_speech(message)]
    life = _life_of(session, agent, spoken)
    if life is None and not _went_on(session, agent):
        session = _begun(session)
        life = session.life
    if life is None:
        return session, life
    is_over = agent.stop is not None and life == session.life and not _went_on(session, agent)
    session = _merged(session, life, spoken, now)
    return (_begun(session) if is_over else session), life


def _life_of(session: Session, agent: Agent, spoken: Sequence[Message] = ()) -> int | None:
    """The life that is an agent's: known by its name, else by words and time, else by the time alone."""
    lives = _told_of(session)[0].lives
    if agent.id in lives:
        return lives[agent.id]
    others = set(lives.values())
    during = [e for e in session.entries if e.life not in others and _is_in_time(e, agent)]
    words = {(message.role, message.text.strip()) for message in spoken}
    alike = max((entry.life for entry in during if (entry.role, entry.text.strip()) in words), default=None)
    if alike is not None or agent.start is None:
        return alike
    return max((entry.life for entry in during), default=None)


def _went_on(session: Session, agent: Agent) -> bool:
    """Whether something was said after the agent had left."""
    end = agent.stop
    return end is not None and any(entry.recorded > end + _SLACK for entry in session.entries)


def _merged(session: Session, life: int, spoken: Sequence[Message], now: float) -> Session:
    if life == session.life:
        return retold(session, spoken, now=now)
    own = [entry for entry in session.entries if entry.life == life]
    if not own:  # all of it has moved to the cold part, which only grows
        return session
    first = session.entries.index(own[0])
    moved = session.moved if first == 0 else 0
    alone = Session(entries=tuple(own), life=life, turns=1 + max(e.turn for e in own), moved=moved)
    alone = msgspec.structs.replace(alone, forgotten=session.forgotten)
    known = retold(alone, spoken, now=now).entries
    return _with(session, first, len(own), known)


def _with(session: Session, first: int, count: int, entries: Sequence[Entry]) -> Session:
    """The session with other entries in the place of ``count`` of its own."""
    newest = session.newest
    if newest is not None:
        newest = msgspec.structs.replace(newest, since=newest.since + len(entries) - count)
    kept = (*session.entries[:first], *entries, *session.entries[first + count :])
    return msgspec.structs.replace(session, entries=kept, newest=newest)


def _begun(session: Session) -> Session:
    """The session in a new life; in the same one, where nothing has been said in it."""
    if not session.moved and not any(entry.life == session.life for entry in session.entries):
        return session
    return msgspec.structs.replace(
        session, life=session.life + 1, turns=0, began=None, newest=None, unheard=()
    )


def _told_of(session: Session) -> tuple[Agents, dict[str, Any]]:
    """What is known of the agents, and the client's state; earlier versions kept the one in the other."""
    if session.agents is not None:
        return session.agents, session.state
    try:
        known = msgspec.convert(session.state.get(_FORMERLY), Agents)
    except msgspec.ValidationError:
        return Agents((), {}), session.state
    return known, {name: value for name, value in session.state.items() if name != _FORMERLY}


def _is_in_time(entry: Entry, agent: Agent) -> bool:
    start = None if agent.start is None else agent.start - _BEFORE
    stop = None if agent.stop is None else agent.stop + _SLACK
    return (start is None or entry.recorded >= start) and (stop is None or entry.recorded <= stop)


def messages(contents: Sequence[Any]) -> list[Message]:
    """What an engine tells was said, as messages."""
    items = [item for item in contents if isinstance(item, dict) and isinstance(item.get("role"), str)]
    return uttered([_message(item) for item in items])


def _message(item: Mapping[str, Any]) -> Message:
    content, metadata, number = item.get("content"), item.get("metadata"), item.get("turn_id")
    at = item.get("timestamp")
    return Message(
        role=item["role"],
        content=content if isinstance(content, str) else "",
        turn_id=number if isinstance(number, int) and 0 <= number < LARGEST else UNSET,
        timestamp=at if plausible(at) is not None else UNSET,
        metadata=metadata if isinstance(metadata, dict) else UNSET,
        others={name: value for name, value in item.items() if name not in _FIELDS},
    )
