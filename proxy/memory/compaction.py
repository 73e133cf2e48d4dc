"""Compaction: summaries replace the oldest turns of a session, or these move to its cold part.

Without a model, a summary is extractive: it consists of the most important sentences of the turns.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from operator import attrgetter
from typing import Final

import msgspec

from filters.injection import one_line
from filters.tokens import in_message, in_text
from filters.tool_groups import groups
from proxy.memory.session import (
    START,
    Entry,
    Segment,
    Session,
    TurnRef,
    count_until,
    entries_fingerprint,
    essence,
    message_of,
)
from proxy.memory.speakers import label, speaker_names, speakers

# At least so many messages come between two summaries, even if every prompt exceeds its budget.
_STEP: Final = 8
_MAX_TOKENS: Final = 50_000
_MOST_TOKENS: Final = 400
_FEWEST_TOKENS: Final = 40
_END = re.compile(r"(?<=[.!?…])\s+|(?<=[\u3002\uff01\uff1f])|\n+")
_WORD = re.compile(r"\w+")
_NUMBER = re.compile(
    r"\d|@|\b(?:one|two|three|four|five|six|seven|eight|nine|ten|dozen|hundred)\b", re.IGNORECASE
)
_NAME = re.compile(r"(?<=[^\W\d_] )[A-ZÀ-ÞА-Я]\w+|\b[A-Z]{2,}\b")
_REQUEST = re.compile(
    r"\b(?:i(?:'m| am| want| need| would|'d| have| like| live| prefer)|my|please|can you|could you|call me"
    r"|name|book|order|cancel|change|remind|remember|never|always|must)\b",
    re.IGNORECASE,
)
_SPEAKERS: Final = ("user", "assistant", "notes")
_NAMED: Final = "user "
_LONGEST_SENTENCE: Final = 240
_FEW_WORDS: Final = 3


class SessionLimits(msgspec.Struct, frozen=True):
    """When a session is compacted, to what size, and when it expires. ``ttl`` is in seconds.

    With ``summaries`` above 0, only summarised turns leave the hot part, and a session has at most that many
    summaries. ``max_tokens`` limits the entries that no summary covers.
    """

    max_messages: int = 60
    keep_messages: int = 20
    ttl: float = 1800.0
    max_tokens: int | None = None
    summaries: int = 0

    def bounded(self) -> "SessionLimits":
        """Returns the limits with a maximum of tokens, which bounds what each turn reads."""
        return msgspec.structs.replace(self, max_tokens=min(self.max_tokens or _MAX_TOKENS, _MAX_TOKENS))


class Plan(msgspec.Struct, frozen=True):
    """The plan of a summary: one segment replaces the segments from ``first`` up to, excluding, ``last``.

    It covers the turns after ``behind``, up to and including ``reach``. With ``merge`` it is made from the
    texts of the segments that it replaces.
    """

    first: int
    last: int
    behind: TurnRef
    reach: TurnRef
    merge: bool = False

    def covers(self, entry: Entry) -> bool:
        """Whether the new segment covers an entry."""
        return self.behind < entry.turn_ref <= self.reach


# --- planning
def next_plan(session: Session, limits: SessionLimits, *, model: bool = True) -> Plan | None:
    """Returns the plan of the summary that is due; ``model`` is whether to replace extractive ones."""
    is_whole = is_short(session, limits) and not (session.cold_count or session.trimmed or session.room)
    if is_whole and not (session.entries and session.entries[0].call < session.call):
        return None
    limits = _in_estimated_tokens(limits, session)
    return (
        _renewal(session, attrgetter("stale"))
        or merger_plan(session, limits)
        or _extension(session, limits)
        or (_renewal(session, attrgetter("extractive")) if model else None)
    )


def fallback_plan(session: Session, limits: SessionLimits) -> Plan | None:
    """Returns the plan of a summary that cannot wait; a merger only if another segment is due."""
    limits = _in_estimated_tokens(limits, session)
    if stale := _renewal(session, attrgetter("stale")):
        return stale
    extension = _extension(session, limits)
    return extension and (merger_plan(session, limits) or extension)


def forced_plan(session: Session, limits: SessionLimits) -> Plan | None:
    """Returns the plan of a summary, due or not, of all but ``keep_messages`` or the newest turn."""
    open_ = uncovered(session)
    return _cut(session, limits.keep_messages if len(open_) > limits.keep_messages else 1)


def overflow_plan(session: Session, limits: SessionLimits) -> Plan | None:
    """Returns the plan of a summary once twice the maximum is exceeded, which cannot wait for a model."""
    if not limits.summaries or _is_cleared(session):
        return None
    limits = _in_estimated_tokens(limits, session)
    open_ = uncovered(session)
    if _exceeds(open_, limits, times=2):
        if open_[0].call < session.call:
            return _up_to(session, _end_of_call(open_))
        return _cut(session, _keep(open_, limits), strict=False)
    return merger_plan(session, limits) if len(session.summaries) > limits.summaries + 1 else None


def is_short(session: Session, limits: SessionLimits) -> bool:
    """Whether a session has no summaries, and no more messages than the limit, like most."""
    return not session.summaries and limits.max_tokens is None and len(session.entries) <= limits.max_messages


def uncovered(session: Session) -> tuple[Entry, ...]:
    """Returns the entries of the hot part that no summary covers, which are the newest."""
    return session.entries[count_until(session.entries, session.summarized_until) :]


def _renewal(session: Session, needs: Callable[[Segment], bool]) -> Plan | None:
    """Returns the plan to write the first segment that needs it anew."""
    for i, segment in enumerate(session.summaries):
        if needs(segment):
            start = session.summaries[i - 1].end if i else START
            if start < segment.end:
                return Plan(i, i + 1, start, segment.end)
    return None


def _extension(session: Session, limits: SessionLimits) -> Plan | None:
    """Returns the plan of another segment for the oldest uncovered turns, if one is due."""
    if _is_cleared(session):
        return None
    open_ = uncovered(session)
    if open_ and open_[0].call < session.call:
        return _up_to(session, _end_of_call(open_))
    keep = min(limits.keep_messages, len(open_) // 2)
    if session.cold_count and not session.summaries:
        return _cut(session, keep)
    # The prompt exceeds its budget, and there are enough new messages for another summary.
    if session.trimmed or (session.room and _has_grown(session, open_, limits)):
        users = [i for i, entry in enumerate(session.entries) if entry.role == "user"]
        restored = users[-session.room] if 0 < session.room <= len(users) else 0
        return _cut(session, min(keep, len(session.entries) - restored))
    return _cut(session, _keep(open_, limits)) if _exceeds(open_, limits) else None


def _has_grown(session: Session, open_: Sequence[Entry], limits: SessionLimits) -> bool:
    if not session.summaries:  # there is none that new ones would soon replace
        return True
    last, least = session.summaries[-1].created_at, min(_STEP, limits.max_messages - limits.keep_messages)
    return sum(entry.recorded_at > last for entry in open_) >= least


def _is_cleared(session: Session) -> bool:
    """Whether the summaries were cleared, and no turn has followed."""
    entries = session.entries
    return not session.summaries and bool(entries) and entries[-1].turn_ref <= session.cleared_until


def merger_plan(session: Session, limits: SessionLimits) -> Plan | None:
    """Returns the plan to merge the oldest segments, if there are too many."""
    count = len(session.summaries)
    if count <= max(limits.summaries, 1):
        return None
    last = count - limits.summaries // 2
    return Plan(0, last, START, session.summaries[last - 1].end, merge=True)


def _end_of_call(open_: Sequence[Entry]) -> TurnRef:
    """Returns the last turn of the oldest entries' call: a summary covers only one call."""
    return max(entry.turn_ref for entry in open_ if entry.call == open_[0].call)


def _cut(session: Session, keep: int, *, strict: bool = True) -> Plan | None:
    """Returns the plan of another segment for all but ``keep`` of the uncovered entries."""
    open_ = uncovered(session)
    cut = cut_of(open_, keep, strict=strict) if open_ else 0
    return _up_to(session, open_[cut - 1].turn_ref) if cut else None


def _up_to(session: Session, reach: TurnRef) -> Plan | None:
    """Returns the plan of another segment; ``None`` if it would cover nothing new, so that planning ends."""
    count = len(session.summaries)
    return Plan(count, count, session.summarized_until, reach) if reach > session.summarized_until else None


def _exceeds(open_: Sequence[Entry], limits: SessionLimits, *, times: int = 1) -> bool:
    if len(open_) > times * limits.max_messages:
        return True
    return limits.max_tokens is not None and sum(map(_tokens, open_)) > times * limits.max_tokens


def _keep(open_: Sequence[Entry], limits: SessionLimits) -> int:
    """How many entries stay uncovered: at most ``keep_messages``, with the same share of the tokens."""
    if limits.max_tokens is None:
        return limits.keep_messages
    most = limits.max_tokens * limits.keep_messages / limits.max_messages
    totals = accumulate(map(_tokens, reversed(open_)))
    return max(1, min(limits.keep_messages, sum(total <= most for total in totals)))


def _in_estimated_tokens(limits: SessionLimits, session: Session) -> SessionLimits:
    """Returns the limits with ``max_tokens`` converted from the model's count to estimated tokens."""
    most, scale = limits.max_tokens, session.scale
    return msgspec.structs.replace(limits, max_tokens=int(most / scale)) if most and scale else limits


def _tokens(entry: Entry) -> int:
    return in_message(message_of(entry))


# --- segments
def make_segment(  # noqa: PLR0913 - all that is known of it
    session: Session,
    plan: Plan,
    entries: Sequence[Entry],
    text: str,
    *,
    now: float,
    model: str | None = None,
    is_extractive: bool = False,
) -> Segment:
    """Makes the segment of a plan with this text; a merger of extractive segments is extractive.

    ``added`` texts of the segments that it replaces are shortened and come first.
    """
    former = session.summaries[plan.first : plan.last]
    added = shorten("\n".join(segment.added for segment in former if segment.added))
    added_by = [name for segment in former if plan.merge or segment.added for name in segment.speakers]
    return Segment(
        text=f"{added}\n{text}" if added and not plan.merge else text,
        call=plan.reach.call,
        turn=plan.reach.turn,
        messages=sum(segment.messages for segment in former) if plan.merge else len(entries),
        fingerprint="" if plan.merge else entries_fingerprint(entries),
        created_at=now,
        model=model,
        extractive=is_extractive or (plan.merge and any(segment.extractive for segment in former)),
        added=added,
        speakers=tuple(dict.fromkeys([*added_by, *speakers(session, entries)])),
    )


def extractive_segment(session: Session, plan: Plan, entries: Sequence[Entry], *, now: float) -> Segment:
    """Makes the segment of a plan, without a model, from sentences of the turns.

    If these have no text, it is made from the segments that it replaces, unless one of them is stale and may
    contain retracted words.
    """
    former = session.summaries[plan.first : plan.last]
    lines = [
        ("notes" if entry.is_injected else label(entry.role, name), entry.text)
        for entry, name in zip(entries, speaker_names(session, entries), strict=True)
        if entry.role != "tool"
    ]
    if plan.merge or not (any(text.strip() for _, text in lines) or any(segment.stale for segment in former)):
        lines = [
            # Only extractive segments that no model wrote name speakers reliably.
            parse_note(line, naming=segment.extractive and segment.model is None)
            for segment in former
            for line in segment.text.split("\n")
        ]
    text = extractive_summary(lines) or "(nothing was said)"
    return make_segment(session, plan, entries, text, now=now, is_extractive=True)


def insert_segment(session: Session, plan: Plan, segment: Segment) -> Session:
    """Puts a segment in the place of its plan; a merger of a stale segment is stale."""
    former = session.summaries[plan.first : plan.last]
    if plan.merge and any(each.stale for each in former):
        segment = msgspec.structs.replace(segment, stale=True)
    summaries = (*session.summaries[: plan.first], segment, *session.summaries[plan.last :])
    trimmed = session.trimmed and plan.reach <= session.summarized_until
    return msgspec.structs.replace(session, summaries=summaries, trimmed=trimmed)


def mark_stale(before: Session, after: Session) -> Session:
    """Returns ``after``, with segments marked as stale whose turns differ from those in ``before``."""
    end = after.summarized_until
    covered = [session.entries[: count_until(session.entries, end)] for session in (before, after)]
    if covered[0] == covered[1]:
        return after
    former, present = map(_essences, covered)
    changed = {turn for turn in former.keys() | present.keys() if former.get(turn) != present.get(turn)}
    starts = [START, *(segment.end for segment in after.summaries)]
    summaries = [
        msgspec.structs.replace(segment, stale=True)
        if any(start < turn <= segment.end for turn in changed)
        else segment
        for start, segment in zip(starts, after.summaries, strict=False)
    ]
    return msgspec.structs.replace(after, summaries=tuple(summaries))


def _essences(entries: Sequence[Entry]) -> dict[TurnRef, list[object]]:
    essences: dict[TurnRef, list[object]] = {}
    for entry in entries:
        essences.setdefault(entry.turn_ref, []).append(essence(entry))
    return essences


# --- the hot part
def fit(
    before: Session, after: Session, limits: SessionLimits, *, now: float
) -> tuple[Session, tuple[Entry, ...]]:
    """Returns the session after a turn with a bounded hot part, and the entries that move out.

    Beyond twice the maximum, extractive summaries replace uncovered turns, so that prompts are bounded even
    without a model.
    """
    if is_short(after, limits):
        return after, ()
    if not limits.summaries:
        most, keep = limits.max_messages, limits.keep_messages
        if limits.max_tokens is not None and _exceeds(after.entries, limits):
            most, keep = min(most, len(after.entries) - 1), _keep(after.entries, limits)
        return cap(after, most, keep)
    session = without_overflow(mark_stale(before, after), limits, now=now)
    return settle(session, limits.keep_messages)


def without_overflow(session: Session, limits: SessionLimits, *, now: float) -> Session:
    """Returns the session with the extractive summaries that cannot wait for a model."""
    while (plan := overflow_plan(session, limits)) is not None:
        entries = [entry for entry in session.entries if plan.covers(entry)]
        session = insert_segment(session, plan, extractive_segment(session, plan, entries, now=now))
    return session


def settle(session: Session, keep: int) -> tuple[Session, tuple[Entry, ...]]:
    """Returns the session with only the newest ``keep`` covered entries, and those that move out.

    The covered entries stay to be aligned with windows that still replay them.
    """
    cut = count_until(session.entries, session.summarized_until) - keep
    while cut > 0 and not _begins_turn(session.entries, cut):
        cut -= 1
    return move_out(session, max(cut, 0))


def cap(session: Session, most: int, keep: int) -> tuple[Session, tuple[Entry, ...]]:
    """Cuts a session of more than ``most`` entries to ``keep`` or more; returns it, and those that move out.

    See ``cut_of`` for where a cut may be. Beyond twice ``most``, an open tool call of a former turn counts as
    abandoned, because the session would otherwise grow without limit.
    """
    size = len(session.entries)
    if size <= most:
        return session, ()
    return move_out(session, cut_of(session.entries, keep, strict=size <= 2 * most))


def move_out(session: Session, count: int) -> tuple[Session, tuple[Entry, ...]]:
    """Returns the session without its ``count`` oldest entries, and these entries."""
    if not count:
        return session, ()
    entries, cold_count = session.entries[count:], session.cold_count + count
    return msgspec.structs.replace(session, entries=entries, cold_count=cold_count), session.entries[:count]


def cut_of(entries: tuple[Entry, ...], keep: int, *, strict: bool) -> int:
    """Returns the last place for a cut that leaves at least ``keep`` entries; 0 if there is none.

    A cut is at the beginning of a turn, outside of tool groups, and not after the call of an open group.
    Unless ``strict``, only open groups of the newest turn count.
    """
    barred: set[int] = set()
    newest, end = entries[-1].turn_ref, 0
    for group in groups([message_of(entry) for entry in entries]):
        waits = group.open and (strict or entries[group.call].turn_ref == newest)
        start = max(group.call + 1, end)
        end = max(len(entries) if waits else max((group.call, *group.results)) + 1, end)
        barred.update(range(start, end))
    for place in range(len(entries) - max(keep, 1), 0, -1):
        if place not in barred and _begins_turn(entries, place):
            return place
    return 0


def _begins_turn(entries: tuple[Entry, ...], place: int) -> bool:
    return entries[place - 1].turn_ref != entries[place].turn_ref


class _Sentence(msgspec.Struct, frozen=True):
    """A sentence, its speaker, and its place in the transcript."""

    place: int
    speaker: str
    text: str


def extractive_summary(transcript: Iterable[tuple[str, str]], most: int | None = None) -> str:
    """Returns the most important sentences of a transcript in order, with one line per change of speaker.

    A transcript is pairs of speaker and text. The summary has about ``most`` tokens, by default a quarter of
    the transcript's and at most 400, and at least one sentence.
    """
    sentences: list[_Sentence] = []
    texts = set[str]()
    for speaker, text in transcript:
        for piece in _END.split(text):
            line = one_line(piece or "", _LONGEST_SENTENCE)
            if line and line.casefold() not in texts:
                texts.add(line.casefold())
                sentences.append(_Sentence(len(sentences), speaker, line))
    if most is None:
        most = min(_MOST_TOKENS, max(_FEWEST_TOKENS, sum(in_text(s.text) for s in sentences) // 4))
    rarity = Counter(word for s in sentences for word in set(_words(s.text)))
    chosen: list[_Sentence] = []
    for sentence in sorted(sentences, key=lambda s: (-_worth(s, rarity, len(sentences)), s.place)):
        size = in_text(sentence.text) + 1
        if size <= most or not chosen:
            chosen.append(sentence)
            most -= size
    lines: list[str] = []
    last = None
    for sentence in sorted(chosen, key=lambda s: s.place):
        if sentence.speaker == last:
            lines[-1] += f" {sentence.text}"
        else:
            lines.append(f"{sentence.speaker}: {sentence.text}")
        last = sentence.speaker
    return "\n".join(lines)


def shorten(text: str) -> str:
    """Returns a text, or an extractive summary of it if it has more than about 400 tokens."""
    if in_text(text) <= _MOST_TOKENS:
        return text
    return extractive_summary(map(parse_note, text.split("\n")), _MOST_TOKENS)


def parse_note(line: str, *, naming: bool = False) -> tuple[str, str]:
    """Splits a line of a summary into speaker and text; without a speaker, that is ``notes``.

    Only with ``naming`` may the speaker be a named user: in other notes, such a line could be an imitation.
    """
    speaker, colon, text = line.partition(": ")
    is_speaker = speaker in _SPEAKERS or (naming and speaker.startswith(_NAMED))
    return (speaker, text) if colon and is_speaker else ("notes", line)


def _worth(sentence: _Sentence, rarity: Counter[str], count: int) -> float:
    """Scores a sentence by its numbers, names, requests and rare words; the user's count more."""
    words = _words(sentence.text)
    if not words:
        return 0.0
    has_number = bool(_NUMBER.search(sentence.text))
    worth = 2.0 * has_number + 1.5 * bool(_NAME.search(sentence.text))
    worth += 1.5 * bool(_REQUEST.search(sentence.text)) + 1.0 * (sentence.speaker != "assistant")
    worth += sum(1 - rarity[word] / count for word in set(words)) / len(set(words))
    return worth * (0.4 if len(words) < _FEW_WORDS and not has_number else 1.0)


def _words(text: str) -> list[str]:
    return _WORD.findall(text.casefold())
