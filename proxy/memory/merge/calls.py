"""A session's lives as an engine tells of them: an agent joins, leaves, and what was said is told.

Events may come late, twice and in any order: each leaves what it would have left in time, once.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UNSET

from filters.message import LARGEST, Message, epoch_seconds
from proxy.memory.align.alignment import Alignment
from proxy.memory.align.line import CUT, Line, similarity, turn_id_of
from proxy.memory.align.strategies import align
from proxy.memory.merge.request import apply_request
from proxy.memory.session import COMMAND, Agents, Entry, Session
from proxy.memory.speakers import unprompted
from proxy.memory.speech import Speech, as_tool_call, is_speech, speech_of

_FORMERLY = "agora"
_MOST_NOTICES = 32
_MOST_AGENTS = 16
_SLACK = 10.0
_FIELDS = frozenset({"role", "content", "turn_id", "timestamp", "metadata"})
_BEFORE = 2.0
_SPOKEN = "speech_start_ms"
_PUT_IN = "[think API injected]"
_EARLIEST, _LATEST = 1e9, 1e11


class Agent(msgspec.Struct, frozen=True, kw_only=True):
    """One run of an agent. Times are in seconds since 1970, ``None`` where they are not known."""

    id: str
    start: float | None = None
    stop: float | None = None


def has_seen(session: Session, notice: str) -> bool:
    """Whether this notice was taken already."""
    return notice in _told_of(session)[0].event_ids


def with_event(session: Session, notice: str, agent: Agent, life: int | None) -> Session:
    """The session that knows of a notice, and which life its agent has."""
    known, state = _told_of(session)
    notices = (*known.event_ids, notice)[-_MOST_NOTICES:]
    lives = known.calls | ({agent.id: life} if agent.id and life is not None else {})
    kept = dict([*lives.items()][-_MOST_AGENTS:])
    return msgspec.structs.replace(session, agents=Agents(notices, kept), state=state)


def agent_joined(session: Session, agent: Agent) -> tuple[Session, int | None]:
    """The session once an agent has joined, and the agent's life: a new one, unless it has begun already."""
    life = _life_of(session, agent)
    if life is None:
        session = _begun(session)
        life = session.call
    return session, life


def agent_left(session: Session, agent: Agent) -> tuple[Session, int | None]:
    """The session once an agent has left: what is said from now on is another life's."""
    life = _life_of(session, agent)
    if life == session.call and not _went_on(session, agent):
        session = _begun(session)
    return session, life


def apply_history(
    session: Session, agent: Agent, contents: Sequence[Message], *, now: float
) -> tuple[Session, int | None]:
    """The session once an engine has told all that was said in an agent's life, and that life.

    What the proxy has seen itself keeps its marks; what it has not seen is added in its place, but for what
    the engine says by itself. Where a later life has begun, and the agent's own is not held, nothing changes.
    An agent that has stopped says no more: that life is over.
    """
    spoken = [as_tool_call(message) for message in unprompted(session, contents) if is_speech(message)]
    life = _life_of(session, agent, spoken)
    if life is None and not _went_on(session, agent):
        session = _begun(session)
        life = session.call
    if life is None:
        return session, life
    is_over = agent.stop is not None and life == session.call and not _went_on(session, agent)
    session = _merged(session, life, spoken, now)
    return (_begun(session) if is_over else session), life


def _life_of(session: Session, agent: Agent, spoken: Sequence[Message] = ()) -> int | None:
    """The life that is an agent's: known by its name, else by words and time, else by the time alone."""
    lives = _told_of(session)[0].calls
    if agent.id in lives:
        return lives[agent.id]
    others = set(lives.values())
    during = [e for e in session.entries if e.call not in others and _is_in_time(e, agent)]
    words = {(message.role, message.text.strip()) for message in spoken}
    alike = max((entry.call for entry in during if (entry.role, entry.text.strip()) in words), default=None)
    if alike is not None or agent.start is None:
        return alike
    return max((entry.call for entry in during), default=None)


def _went_on(session: Session, agent: Agent) -> bool:
    """Whether something was said after the agent had left."""
    end = agent.stop
    return end is not None and any(entry.recorded_at > end + _SLACK for entry in session.entries)


def _merged(session: Session, life: int, spoken: Sequence[Message], now: float) -> Session:
    if life == session.call:
        return merge_history(session, spoken, now=now)
    own = [entry for entry in session.entries if entry.call == life]
    if not own:  # all of it has moved to the cold part, which only grows
        return session
    first = session.entries.index(own[0])
    moved = session.cold_count if first == 0 else 0
    alone = Session(entries=tuple(own), call=life, next_turn=1 + max(e.turn for e in own), cold_count=moved)
    alone = msgspec.structs.replace(alone, forgotten=session.forgotten)
    known = merge_history(alone, spoken, now=now).entries
    return _with(session, first, len(own), known)


def _with(session: Session, first: int, count: int, entries: Sequence[Entry]) -> Session:
    """The session with other entries in the place of ``count`` of its own."""
    newest = session.latest_request
    if newest is not None:
        newest = msgspec.structs.replace(newest, start=newest.start + len(entries) - count)
    kept = (*session.entries[:first], *entries, *session.entries[first + count :])
    return msgspec.structs.replace(session, entries=kept, latest_request=newest)


def _begun(session: Session) -> Session:
    """The session in a new life; in the same one, where nothing has been said in it."""
    if not session.cold_count and not any(entry.call == session.call for entry in session.entries):
        return session
    return msgspec.structs.replace(
        session, call=session.call + 1, next_turn=0, started=None, latest_request=None, unheard=()
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
    return (start is None or entry.recorded_at >= start) and (stop is None or entry.recorded_at <= stop)


def history_messages(contents: Sequence[Any]) -> list[Message]:
    """What an engine tells was said, as messages."""
    items = [item for item in contents if isinstance(item, dict) and isinstance(item.get("role"), str)]
    return with_speech_times([_message(item) for item in items])


def _message(item: Mapping[str, Any]) -> Message:
    content, metadata, number = item.get("content"), item.get("metadata"), item.get("turn_id")
    at = item.get("timestamp")
    return Message(
        role=item["role"],
        content=content if isinstance(content, str) else "",
        turn_id=number if isinstance(number, int) and 0 <= number < LARGEST else UNSET,
        timestamp=at if plausible_time(at) is not None else UNSET,
        metadata=metadata if isinstance(metadata, dict) else UNSET,
        others={name: value for name, value in item.items() if name not in _FIELDS},
    )


def merge_history(held: Session, history: Sequence[Message], *, now: float) -> Session:
    """The session once the talk of its life that goes on was told; never does that begin another one.

    A history that surely shows nothing of what is held is of some other talk, and changes nothing.
    """
    said = speech_of(history)
    by_words = _renumbered(said, None)
    replay = align(held, by_words, known=True)
    same = _same(said, replay)
    if replay.entries and not same:
        return held
    ahead = _ahead(same)
    if ahead is None:
        replay = msgspec.structs.replace(replay, end=_end(replay))
        return apply_request(held, by_words, now=now, replay=replay)[0]
    numbered = _renumbered(said, ahead)
    return apply_request(held, numbered, now=now, replay=align(held, numbered, known=True))[0]


def _end(replay: Alignment) -> int:
    """Where in ``held`` begins what the history does not reach to: it may be told late, or not to the end.

    Words of the user that it shows last, and that are not held, stand for as many that are.
    """
    if not replay.matched:
        return replay.end
    last = max(i for i, place in enumerate(replay.places) if place >= 0)
    more = sum(message.role == "user" for message in replay.lines[last + 1 :])
    rest = range(max(replay.matched) + 1, len(replay.entries))
    behind = [h for h in rest if replay.entries[h].role == "user"]
    return behind[more] if more < len(behind) else replay.end


def _same(said: Speech, replay: Alignment) -> list[tuple[Message, Entry]]:
    """The lines that are surely held, and what they are held as."""
    pairs = zip(said.lines, replay.places, strict=True)
    found = [(line, replay.entries[place]) for line, place in pairs if place >= 0]
    return [(line, entry) for line, entry in found if similarity(Line(line), Line(entry)) >= CUT]


def _ahead(same: Sequence[tuple[Message, Entry]]) -> int | None:
    """How far the life's own numbers are ahead of the history's: engines count one from 0, the other from 1.

    ``None`` where most of the lines that say the same do not agree on it.
    """
    pairs = ((turn_id_of(line), entry.engine_turn) for line, entry in same)
    found = Counter(own - told for told, own in pairs if told is not None and own is not None)
    ((ahead, count),) = found.most_common(1) or [(0, not same)]
    return ahead if 2 * count > found.total() else None


def _renumbered(said: Speech, ahead: int | None) -> Speech:
    """The speech with its numbers so much further on, or without any."""
    return Speech([_counted(line, ahead) for line in said.lines], said.shows_answers)


def _counted(line: Message, ahead: int | None) -> Message:
    number = turn_id_of(line)
    turn = UNSET if number is None or ahead is None else number + ahead
    return msgspec.structs.replace(line, turn_id=turn)


def with_speech_times(messages: Sequence[Message]) -> list[Message]:
    """Messages with their times of speech, where such are told, as when they were said.

    Words of a user without a time of speech, where others have one, were put in through the engine's
    interface, and nobody said them; so were those that say so themselves.
    """
    timed = any(_SPOKEN in message.others for message in messages)
    return [_uttered(message, timed=timed) for message in messages]


def plausible_time(timestamp: object) -> float | None:
    """A time of an event in seconds since 1970; ``None`` for what is none."""
    seconds = epoch_seconds(timestamp)
    return seconds if seconds is not None and _EARLIEST <= seconds < _LATEST else None


def _uttered(message: Message, *, timed: bool) -> Message:
    at = message.others.get(_SPOKEN)
    if plausible_time(at) is not None:
        message = msgspec.structs.replace(message, timestamp=at)
    if message.role == "user" and not message.metadata and _is_put_in(message, timed=timed):
        message = msgspec.structs.replace(message, metadata={"source": COMMAND})
    return message


def _is_put_in(message: Message, *, timed: bool) -> bool:
    return (timed and _SPOKEN not in message.others) or message.text.startswith(_PUT_IN)
