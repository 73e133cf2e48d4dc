"""Merges webhook events of a voice platform into a session: an agent joins or leaves, a history arrives.

Events may come late, twice and in any order, with the same result. An event belongs to the call of the agent
that it names, else to the call with its words, and else to the call at its time.
"""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final, TypeVar

import msgspec
from msgspec import UNSET

from filters.message import LARGEST, MARKS, Message, epoch_seconds, turn_id_of
from proxy.memory.align.line import CUT, Line, similarity
from proxy.memory.align.strategies import WindowKind, align
from proxy.memory.merge.request import apply_request
from proxy.memory.session import COMMAND, NO_CALL, Agents, Entry, QuestionRef, Segment, Session
from proxy.memory.speakers import without_prompts
from proxy.memory.speech import Speech, as_tool_call, is_speech, speech_of

_MAX_EVENTS: Final = 32
_MAX_AGENTS: Final = 16
# How many seconds turns may precede the start of a running agent, and lie outside the run of a stopped one.
_EARLY, _SLACK = 2.0, 60.0
_MESSAGE_KEYS: Final = frozenset({"role", "content", "turn_id", "timestamp", "metadata"})
_SPEECH_TIME: Final = "speech_start_ms"
_INJECTED: Final = "[think API injected]"
_EARLIEST, _LATEST = 1e9, 1e11
T = TypeVar("T", Entry, Segment)


class Agent(msgspec.Struct, frozen=True, kw_only=True):
    """One run of an agent in a channel.

    Times are in seconds since 1970 by the clock of this machine, ``None`` if unknown.
    """

    id: str
    start: float | None = None
    stop: float | None = None


def has_seen(session: Session, event_id: str) -> bool:
    """Whether an event was merged before."""
    return event_id in _agents(session).event_ids


def with_event(session: Session, event_id: str, agent: Agent, call: int | None) -> Session:
    """Returns the session with an event marked as merged, and with its agent's call."""
    agents = _agents(session)
    event_ids = (*agents.event_ids, event_id)[-_MAX_EVENTS:]
    calls = agents.calls | ({agent.id: call} if agent.id and call is not None else {})
    calls = dict([*calls.items()][-_MAX_AGENTS:])
    agents = msgspec.structs.replace(agents, event_ids=event_ids, calls=calls)
    return msgspec.structs.replace(session, agents=agents)


def agent_joined(session: Session, agent: Agent) -> tuple[Session, int | None]:
    """Returns the session after an agent joined, and the agent's call, a new one unless it has begun."""
    call = _agents(session).calls.get(agent.id)
    if call is None:
        call = _call_of(session, agent)
    if call is None:
        session = _begin_call(session)
        call = session.call
    return session, call


def agent_left(session: Session, agent: Agent) -> tuple[Session, int | None]:
    """Returns the session after an agent left, and the agent's call; later words belong to another call."""
    call = _call_of(session, agent)
    if call == session.call and not _went_on(session, agent):
        session = _begin_call(session)
    return session, call


def apply_history(
    session: Session, agent: Agent, contents: Sequence[Message], *, now: float
) -> tuple[Session, int | None]:
    """Merges the whole history of an agent's call, as the platform reports it; returns session and call.

    Recorded entries keep their marks. Other lines are added in their places, except what the platform says by
    itself. A call without stored entries is added after all others, or before the current one if that has
    entries from after the agent's start. The call of a stopped agent is over.
    """
    messages = [as_tool_call(message) for message in without_prompts(session, contents) if is_speech(message)]
    call = _call_of(session, agent, messages)
    if call is None:
        if session.entries and (agent.start is None or _said_since(session, agent.start)):
            return _insert_call(session, agent, messages, now)
        session = _begin_call(session)
        call = session.call
    is_over = agent.stop is not None and call == session.call and not _went_on(session, agent)
    session = _merge_call(session, call, messages, now)
    return (_begin_call(session) if is_over else session), call


def merge_history(session: Session, history: Sequence[Message], *, now: float) -> Session:
    """Merges a history of the current call into its session; never begins another call.

    Nothing changes if no line of the history surely matches an entry: it is another call's.
    """
    speech = speech_of(history)
    by_words = _renumbered(speech, None)
    alignment = align(session, by_words, kind=WindowKind.HISTORY)
    pairs = zip(speech.lines, alignment.places, strict=True)
    matched = [(line, alignment.entries[place]) for line, place in pairs if place >= 0]
    sure = [(line, entry) for line, entry in matched if similarity(Line(line), Line(entry)) >= CUT]
    if alignment.entries and not sure:
        return session
    # By how much the recorded turn ids exceed the history's: platforms count one from 0, the other from 1.
    turn_ids = ((turn_id_of(line), entry.turn_id) for line, entry in sure)
    offsets = Counter(own - other for other, own in turn_ids if other is not None and own is not None)
    ((offset, count),) = offsets.most_common(1) or [(0, not sure)]
    if 2 * count <= offsets.total():  # not even half of the matching lines agree on it
        if alignment.matched:
            # The history may be late or incomplete: words of the user at its end that are not recorded stand
            # for as many recorded ones.
            last = max(i for i, place in enumerate(alignment.places) if place >= 0)
            more = sum(message.role == "user" for message in alignment.lines[last + 1 :])
            rest = range(max(alignment.matched) + 1, len(alignment.entries))
            users = [place for place in rest if alignment.entries[place].role == "user"]
            if more < len(users):
                alignment = msgspec.structs.replace(alignment, end=users[more])
        return apply_request(session, by_words, now=now, alignment=alignment)[0]
    numbered = _renumbered(speech, offset)
    alignment = align(session, numbered, kind=WindowKind.HISTORY)
    return apply_request(session, numbered, now=now, alignment=alignment)[0]


def history_messages(contents: Sequence[Any]) -> list[Message]:
    """Returns the messages of a history in the platform's format; skips items that are none."""
    messages = []
    for item in contents:
        if not isinstance(item, dict) or not isinstance(item.get("role"), str):
            continue
        content, metadata, turn_id = item.get("content"), item.get("metadata"), item.get("turn_id")
        at = item.get("timestamp")
        messages.append(
            Message(
                role=item["role"],
                content=content if isinstance(content, str) else "",
                turn_id=turn_id if isinstance(turn_id, int) and 0 <= turn_id < LARGEST else UNSET,
                timestamp=at if plausible_time(at) is not None else UNSET,
                metadata=metadata if isinstance(metadata, dict) else UNSET,
                others={name: value for name, value in item.items() if name not in _MESSAGE_KEYS},
            )
        )
    return with_speech_times(messages)


def with_speech_times(messages: Sequence[Message]) -> list[Message]:
    """Returns the messages, with the times at which they were spoken as timestamps.

    A program has injected words of a user that begin with ``[think API injected]``, or that have no such time
    although other messages do. These are marked, unless they have marks already.
    """
    timed = any(_SPEECH_TIME in message.others for message in messages)
    result = []
    for message in messages:
        at = message.others.get(_SPEECH_TIME)
        timestamp = message.timestamp if plausible_time(at) is None else at
        is_injected = (timed and _SPEECH_TIME not in message.others) or message.text.startswith(_INJECTED)
        is_marked = bool(message.metadata or MARKS & message.others.keys())
        is_command = message.role == "user" and is_injected and not is_marked
        metadata = {"source": COMMAND} if is_command else message.metadata
        result.append(msgspec.structs.replace(message, timestamp=timestamp, metadata=metadata))
    return result


def plausible_time(timestamp: object) -> float | None:
    """Returns a timestamp in seconds since 1970; ``None`` for an implausible value."""
    seconds = epoch_seconds(timestamp)
    return seconds if seconds is not None and _EARLIEST <= seconds < _LATEST else None


def _agents(session: Session) -> Agents:
    return session.agents or Agents((), {})


def _call_of(session: Session, agent: Agent, messages: Sequence[Message] = ()) -> int | None:
    """Returns the call of an agent: by the agent's id, else by the words of its history, else by its time.

    If nothing was said in a call before another agent joined, it belongs to that other agent.
    """
    calls = _agents(session).calls
    if agent.id in calls:
        call = calls[agent.id]
        last = [id_ for id_, of in calls.items() if of == call][-1]
        if last == agent.id:
            return call
    others = set(calls.values())
    entries = [entry for entry in session.entries if entry.call not in others]
    if messages:
        # The call that shares most messages with the history, at least half of the call's or the history's.
        words = {(message.role, message.text.strip()) for message in messages}
        spoken: dict[int, set[tuple[str, str]]] = {}
        for entry in entries:
            spoken.setdefault(entry.call, set()).add((entry.role, entry.text.strip()))
        shared = ((len(texts & words), min(len(texts), len(words)), call) for call, texts in spoken.items())
        alike = [(count, call) for count, most, call in shared if count and 2 * count >= most]
        return max(alike)[1] if alike else None
    if agent.start is None:
        return None
    start = agent.start - (_EARLY if agent.stop is None else _SLACK)
    stop = math.inf if agent.stop is None else agent.stop + _SLACK
    return max((entry.call for entry in entries if start <= entry.recorded_at <= stop), default=None)


def _said_since(session: Session, at: float) -> bool:
    return any(entry.recorded_at > at for entry in session.entries)


def _went_on(session: Session, agent: Agent) -> bool:
    """Whether something was said over a minute after an agent left; false if the agent's call is stored."""
    is_known = agent.id in _agents(session).calls
    return not is_known and agent.stop is not None and _said_since(session, agent.stop + _SLACK)


def _begin_call(session: Session) -> Session:
    """Returns the session with a new call; unchanged if nothing was said in the current one."""
    if not session.cold_count and not any(entry.call == session.call for entry in session.entries):
        return session
    return msgspec.structs.replace(
        session, call=session.call + 1, next_turn=0, started=None, latest_request=None, unheard=()
    )


def _insert_call(
    session: Session, agent: Agent, messages: Sequence[Message], now: float
) -> tuple[Session, int | None]:
    """Inserts a call before the current one, whose number grows by one; returns the session and the call.

    Nothing changes, and the call is ``None``, if it began before a deletion, or if the current call has
    entries in the cold part.
    """
    call, first = session.call, sum(entry.call < session.call for entry in session.entries)
    deletion = session.deletion
    is_deleted = deletion is not None and (agent.start is None or agent.start <= deletion.at)
    if is_deleted or (session.cold_count and not first):
        return session, None
    alone = merge_history(Session(call=call, deletion=deletion), messages, now=now)
    if not alone.entries:
        return session, None
    agents = _agents(session)
    shifted = msgspec.structs.replace(
        session,
        entries=(*session.entries[:first], *alone.entries, *map(_in_next_call, session.entries[first:])),
        call=call + 1,
        unheard=tuple(map(_in_next_call, session.unheard)),
        summaries=tuple(_in_next_call(each) if each.call == call else each for each in session.summaries),
        agents=msgspec.structs.replace(
            agents, calls={id_: of + (of == call) for id_, of in agents.calls.items()}
        ),
    )
    if session.learned_until.call == call:
        learned_until = session.learned_until._replace(call=call + 1)
        shifted = msgspec.structs.replace(shifted, learned_until=learned_until)
    if session.noted_until.call == call:
        # Then the inserted call is listed as a past call, and the current one again.
        shifted = msgspec.structs.replace(shifted, noted_until=NO_CALL)
    if (shown_call := session.shown_call) is not None and shown_call.call == call:
        shown_call = msgspec.structs.replace(shown_call, call=call + 1)
        shifted = msgspec.structs.replace(shifted, shown_call=shown_call)
    if (latest := session.latest_request) is not None:
        latest = msgspec.structs.replace(
            latest,
            start=latest.start + len(alone.entries),
            question=_question_in_next_call(latest.question, call),
            overtaken=tuple((key, _question_in_next_call(ref, call)) for key, ref in latest.overtaken),
        )
    return msgspec.structs.replace(shifted, latest_request=latest), call


def _in_next_call(item: T) -> T:
    return msgspec.structs.replace(item, call=item.call + 1)


def _question_in_next_call(ref: QuestionRef | None, call: int) -> QuestionRef | None:
    return ref._replace(call=call + 1) if ref is not None and ref.call == call else ref


def _merge_call(session: Session, call: int, messages: Sequence[Message], now: float) -> Session:
    """Returns the session with the history of one of its calls merged in."""
    if call == session.call:
        return merge_history(session, messages, now=now)
    of_call = [entry for entry in session.entries if entry.call == call]
    if not of_call:  # the whole call is in the cold part, which is append-only
        return session
    first = session.entries.index(of_call[0])
    alone = Session(
        entries=tuple(of_call),
        call=call,
        next_turn=1 + max(entry.turn for entry in of_call),
        cold_count=session.cold_count if first == 0 else 0,
        deletion=session.deletion,
    )
    entries = merge_history(alone, messages, now=now).entries
    latest = session.latest_request
    if latest is not None:
        latest = msgspec.structs.replace(latest, start=latest.start + len(entries) - len(of_call))
    merged = (*session.entries[:first], *entries, *session.entries[first + len(of_call) :])
    return msgspec.structs.replace(session, entries=merged, latest_request=latest)


def _renumbered(speech: Speech, offset: int | None) -> Speech:
    """Returns the speech with its turn ids shifted by ``offset``; without turn ids if that is ``None``."""
    lines = []
    for line in speech.lines:
        turn_id = turn_id_of(line)
        shifted = UNSET if turn_id is None or offset is None else turn_id + offset
        lines.append(msgspec.structs.replace(line, turn_id=shifted))
    return Speech(lines, speech.shows_answers, speech.positions)
