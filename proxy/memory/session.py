"""A session: entries in calls and turns, the values stored with them, and its codec.

A field with a ``name`` is stored under that name, which must not change: stored sessions have it.
"""

import hashlib
import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from itertools import pairwise
from operator import attrgetter
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import UNSET

from filters.injection import LastCall, users
from filters.message import Content, Message, epoch_seconds
from proxy.memory import extensible
from proxy.memory.extensible import Extensible
from proxy.memory.speech import Speech, as_function_call
from proxy.memory.wording import text_hash

REASONING: Final = "reasoning_content"
"""The field of a message that brings a model's reasoning back to it; most models refuse it."""
COMMAND: Final = "command"
"""The source of messages that a program adds through the voice platform's interface."""
WITH_NEWEST: Final = -1
"""The position of facts that are shown with the newest words."""

# No voice platform existed before 2001, so a smaller number does not count from 1970.
_CLOCKS_FROM: Final = 1e9
_DAY: Final = 86_400.0
_NAME_BYTES: Final = 6
_FINGERPRINT_BYTES: Final = 8
_MAX_OVERTAKEN: Final = 4
_MAX_UNHEARD: Final = 4

_encode: Final = msgspec.msgpack.Encoder().encode
_decode_lines: Final = msgspec.msgpack.Decoder(list[Message]).decode
_others: Final = attrgetter("others")
_call_and_turn: Final = attrgetter("call", "turn")


# --- turns and entries --------------------------------------------------------------------------------------


class TurnRef(NamedTuple):
    """A turn by its number within its call. References sort in the order of the turns."""

    call: int
    turn: int


START: Final = TurnRef(0, -1)
"""Before all turns."""
NO_CALL: Final = TurnRef(-1, -1)
"""Before all calls."""
_FIRST: Final = TurnRef(0, 0)


class Entry(Extensible, frozen=True, kw_only=True, gc=False):
    """One message as it was heard.

    ``turn`` counts from 0 within a ``call`` and never decreases; ``turn_id`` is the platform's own number of
    the turn, if it has one. ``timestamp`` is as the platform wrote it. ``original`` is the whole answer as
    generated, if the user heard only a part. ``pending`` marks an answer that no later request has confirmed
    or cut: it is recorded as generated. ``broken`` marks one whose stream ended early.
    """

    role: str
    turn: int
    call: int = msgspec.field(default=0, name="life")
    turn_id: int | None = msgspec.field(default=None, name="engine_turn")
    content: Content = None
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    timestamp: int | float | None = None
    source: str | None = None
    user: str | None = None
    asking_user: str | None = msgspec.field(default=None, name="asker")
    """The user that the request names, if the message names none."""
    interrupted: bool = False
    interrupt_timestamp: int | float | None = None
    original: str | None = None
    pending: bool = False
    broken: bool = False
    reasoning: str | None = None
    """The model's reasoning before its answer, if it is stored."""
    replaced_hash: str | None = msgspec.field(default=None, name="replaced")
    """The hash of the words that this entry replaced, which a voice platform may still show."""
    recorded_at: float = msgspec.field(default=0.0, name="recorded")
    """When the entry was first recorded, in seconds since 1970."""

    @property
    def at(self) -> float:
        """When it was said, in seconds since 1970: ``timestamp`` if plausible, else ``recorded_at``."""
        stamp = epoch_seconds(self.timestamp)
        if stamp is None or not _CLOCKS_FROM <= stamp <= self.recorded_at + _DAY:
            return self.recorded_at
        return stamp

    @property
    def turn_ref(self) -> TurnRef:
        """The turn of the entry."""
        return TurnRef(self.call, self.turn)

    @property
    def speaker(self) -> str | None:
        """The user who said it, if the request or the message names one."""
        return self.asking_user or self.user

    @property
    def is_injected(self) -> bool:
        """Whether a program added it; no user said it."""
        return self.role == "user" and self.source == COMMAND

    @property
    def text(self) -> str:
        """The content as text; text parts are joined by line breaks."""
        return self.content if isinstance(self.content, str) else Message(role="", content=self.content).text

    def replaces(self, text: str) -> bool:
        """Whether this entry replaced a text."""
        return self.replaced_hash is not None and self.replaced_hash == text_hash(text)

    @property
    def generated(self) -> str:
        """The whole answer as the model generated it, heard or not."""
        return self.text if self.original is None else self.original


def message_of(entry: Entry) -> Message:
    """Returns an entry as a message in Agora's format, as a voice platform would send it."""
    metadata: dict[str, Any] = {} if entry.source is None else {"source": entry.source}
    if entry.user is not None:
        metadata["user"] = entry.user
    if entry.interrupt_timestamp is not None:
        metadata["interrupt_timestamp"] = entry.interrupt_timestamp
    if entry.original is not None:
        metadata["original"] = entry.original
    if entry.interrupted:
        metadata["interrupted"] = True
    # Spelt out for speed: a turn may restore all messages that a voice platform has dropped.
    message = Message(
        role=entry.role,
        content=entry.content,
        name=UNSET if entry.name is None else entry.name,
        tool_calls=UNSET if entry.tool_calls is None else entry.tool_calls,
        tool_call_id=UNSET if entry.tool_call_id is None else entry.tool_call_id,
        turn_id=entry.turn if entry.turn_id is None else entry.turn_id,
        timestamp=UNSET if entry.timestamp is None else entry.timestamp,
        metadata=metadata or UNSET,
        others={} if entry.reasoning is None else {REASONING: entry.reasoning},
    )
    return as_function_call(message) if entry.tool_calls or entry.tool_call_id else message


class Segment(Extensible, frozen=True, kw_only=True, gc=False):
    """A summary of all turns after the end of the segment before, up to and including ``turn`` of ``call``.

    ``messages`` is the number of messages that it covers, and ``fingerprint`` is theirs. ``created_at`` is in
    seconds since 1970. ``model`` wrote the text; an ``extractive`` one consists of the turns' own sentences,
    until a model answers. A ``stale`` segment covers turns that were corrected since. ``added`` is text that
    its turns do not contain, shortened if long: a new summary of them would lose it. ``speakers`` are the
    known users whose words it covers.
    """

    text: str
    call: int = msgspec.field(name="life")
    turn: int
    messages: int = 0
    fingerprint: str = ""
    created_at: float = msgspec.field(default=0.0, name="made")
    model: str | None = None
    extractive: bool = msgspec.field(default=False, name="digest")
    stale: bool = False
    added: str = ""
    speakers: tuple[str, ...] = ()

    @property
    def end(self) -> TurnRef:
        """The last turn that the segment covers."""
        return TurnRef(self.call, self.turn)


def entries_fingerprint(entries: Sequence[Entry]) -> str:
    """Returns 16 hex digits that identify the turns of entries, their texts, tool calls and results."""
    # Hashes a JSON array entry by entry: while the encoder runs, no other thread does.
    encoded, separator = hashlib.sha256(), b"["
    for entry in entries:
        encoded.update(separator + msgspec.json.encode(essence(entry)))
        separator = b","
    encoded.update(b"]" if entries else b"[]")
    return encoded.hexdigest()[:16]


def essence(entry: Entry) -> tuple[object, ...]:
    """The values of an entry that a summary depends on: its turn, role, text and tool calls."""
    calls = [str(call.get("function")) for call in entry.tool_calls or ()]
    return (*entry.turn_ref, entry.role, entry.text, calls, entry.tool_call_id)


# --- requests -----------------------------------------------------------------------------------------------


class Attempt(NamedTuple):
    """A request's name, and whether it is a retry; distinguishes a retry from a new turn with equal words.

    ``name_digest`` is the hash of the client's name for the request, empty without a name. ``is_retry`` is
    whether the client marks the request as a retry; ``None`` without any mark.
    """

    name_digest: bytes = b""
    is_retry: bool | None = None


class Arrival(NamedTuple):
    """An attempt, and when it arrived, in seconds since 1970; by default after everything else."""

    attempt: Attempt = Attempt()
    at: float = math.inf


NO_ATTEMPT: Final = Attempt()
"""The attempt of a request without a name or a mark."""
ARRIVES_NOW: Final = Arrival()
"""An arrival after everything that is recorded."""


def attempt(name: str | None, *, is_retry: bool | None) -> Attempt:
    """Returns the attempt of a request with this name."""
    if name is None:
        return Attempt(b"", is_retry)
    return Attempt(blake2b(name.encode("utf-8", "replace"), digest_size=_NAME_BYTES).digest(), is_retry)


class QuestionRef(NamedTuple):
    """A message of the user, by its call and turn.

    ``question`` counts from the end of the turn: -1 is its last message of the user, -2 the one before. It is
    0 where the model speaks unasked at the end of the turn.
    """

    call: int
    turn: int
    question: int = -1

    @property
    def unasked(self) -> bool:
        """Whether the reference is to no message, as the model speaks unasked."""
        return self.question == 0


class LatestRequest(Extensible, frozen=True, kw_only=True, gc=False):
    """The latest request that a session has recorded.

    ``at`` is when it arrived, in seconds since 1970. ``fingerprint`` identifies its window of ``line_count``
    lines. ``start`` is the first entry of the window, counted from the session's first entry, cold part
    included; ``shows_call_start`` is whether the window reaches back to the start of its call.
    ``shows_answers`` is whether the window shows answers, and ``wordless`` whether these are all empty, as
    unheard. ``question`` is the message to be answered. ``overtaken`` are the fingerprints and questions of
    requests that arrived before it and were recorded after it. ``name_digest`` is the hash of its name, if it
    has one. ``ended`` is when its answer ended, 0 if unknown, and ``finished`` whether it was complete.
    """

    at: float
    fingerprint: bytes = msgspec.field(name="seal")
    line_count: int = msgspec.field(name="lines")
    start: int = msgspec.field(name="since")
    shows_answers: bool = msgspec.field(name="answering")
    shows_call_start: bool = msgspec.field(name="whole")
    wordless: bool = False
    question: QuestionRef | None = msgspec.field(default=None, name="asked")
    overtaken: tuple[tuple[bytes, QuestionRef | None], ...] = ()
    name_digest: bytes = msgspec.field(default=b"", name="request")
    ended: float = 0.0
    finished: bool = False

    def includes(self, fingerprint: bytes) -> bool:
        """Whether the request with this fingerprint has been recorded."""
        return fingerprint == self.fingerprint or fingerprint in dict(self.overtaken)

    def question_of(self, fingerprint: bytes) -> QuestionRef | None:
        """The message that the request with this fingerprint asked to be answered, if it is recorded."""
        return self.question if fingerprint == self.fingerprint else dict(self.overtaken).get(fingerprint)

    def with_overtaken(self, fingerprint: bytes, question: QuestionRef | None) -> "LatestRequest":
        """Returns the request with another one added to ``overtaken``, which has the last four."""
        overtaken = (*self.overtaken, (fingerprint, question))[-_MAX_OVERTAKEN:]
        return msgspec.structs.replace(self, overtaken=overtaken)


def encoded_lines(lines: Sequence[Message]) -> bytes:
    """Encodes lines, one after the other; returns no bytes if one cannot be encoded."""
    try:
        return _encode(lines)[len(_array_head(len(lines))) :]
    except (OverflowError, UnicodeEncodeError):
        return b""


def decoded_lines(encoded: bytes, count: int) -> list[Message]:
    """Decodes ``count`` lines from their bytes."""
    return _decode_lines(_array_head(count) + encoded)


def goes_on(lines: bytes, former: bytes, newest: bytes) -> bool:
    """Whether encoded lines, up to the ``newest`` at their end, are the last of the ``former`` ones."""
    return len(lines) > len(newest) and former.endswith(lines[: -len(newest)])


def request_fingerprint(
    speech: Speech,
    attempt: Attempt = NO_ATTEMPT,
    encoded: bytes = b"",
    *,
    shows_answers: bool | None = None,
) -> bytes:
    """Returns eight bytes that identify a window's speech; for a single line, the request's name counts too.

    ``encoded`` are the encoded lines, if the caller has them. ``shows_answers`` overrides that of ``speech``.
    """
    lines = speech.lines or speech.instructions
    if any(map(_others, lines)):
        lines = [msgspec.structs.replace(line, others={}) if line.others else line for line in lines]
        encoded = b""
    try:
        blob = _array_head(len(lines)) + encoded if encoded else msgspec.msgpack.encode(lines)
    except (OverflowError, UnicodeEncodeError):
        # For integers of more than 64 bits, and lone surrogates.
        blob = repr(lines).encode("utf-8", "replace")
    if len(speech.lines) == 1:
        blob += attempt.name_digest
    key = b"answering" if (speech.shows_answers if shows_answers is None else shows_answers) else b"silent"
    return blake2b(blob, digest_size=_FINGERPRINT_BYTES, key=key).digest()


def _array_head(size: int) -> bytes:
    """Returns the header of a MessagePack array of ``size`` values."""
    if size < 16:  # noqa: PLR2004 - the short form counts in four bits
        return bytes((0x90 + size,))
    return b"\xdc" + size.to_bytes(2) if size < 1 << 16 else b"\xdd" + size.to_bytes(4)


# --- the session --------------------------------------------------------------------------------------------


class LineDigests(NamedTuple):
    """The digests of a deleted line: of its words, and of its turn id and time, if it has any."""

    words: bytes
    stamp: bytes = b""


class Deletion(Extensible, frozen=True, kw_only=True, gc=False):
    """Marks of lines that were deleted, ``at`` seconds since 1970, and must not be recorded again.

    ``open`` is whether no window has come since; the first one adds marks of the lines that it shows.
    ``whole`` is whether everything was deleted until then, not only the words of one user.
    """

    at: float
    marks: tuple[LineDigests, ...] = ()
    whole: bool = False
    open: bool = False


class Agents(Extensible, frozen=True, gc=False):
    """The ids of the latest webhook events of agents, and the calls by the agents' ids."""

    event_ids: tuple[str, ...] = msgspec.field(name="notices")
    calls: dict[str, int] = msgspec.field(name="lives")


class ShownFacts(Extensible, frozen=True, kw_only=True, gc=False):
    """The ids of the facts that a session's prompts show between two compactions.

    ``epoch`` identifies the time between two compactions. ``facts`` are those about ``user`` at the head of
    the prompts, in order; ``others`` were known then and are not shown. ``news`` were learned since: each id
    with the message of the user, counted from 0, with which it was first shown. ``at`` is
    when any of these changed, in seconds since 1970.
    """

    user: str = msgspec.field(name="person")
    epoch: bytes
    at: float
    facts: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    news: tuple[tuple[str, int], ...] = ()


class ShownCall(Extensible, frozen=True, kw_only=True, gc=False):
    """The earlier call of ``user``, and the profile, that the prompts of a call show.

    They stay the same until the call ends. The earlier call was in ``session``; ``speakers`` are the users
    who spoke in it.
    """

    call: int
    user: str
    profile: str = ""
    last_call: LastCall | None = None
    session: str = ""
    speakers: tuple[str, ...] = ()


def with_positions(facts: ShownFacts | None, prompt: Sequence[Message]) -> ShownFacts | None:
    """Replaces ``WITH_NEWEST`` in facts by the position of the user's newest message in a prompt."""
    if not (facts and facts.news) or all(position != WITH_NEWEST for _, position in facts.news):
        return facts
    newest = len(users(prompt)) - 1
    news = ((name, newest if position == WITH_NEWEST else position) for name, position in facts.news)
    return msgspec.structs.replace(facts, news=tuple(news))


class Session(Extensible, frozen=True, kw_only=True, gc=False):
    """The record of one conversation, without system messages. Times are in seconds since 1970."""

    entries: tuple[Entry, ...] = ()
    """The newest entries, in order; ``cold_count`` older ones have moved to the cold part."""
    call: int = msgspec.field(default=0, name="life")
    """The number of the current call: another one begins when the voice platform starts its turns anew."""
    next_turn: int = msgspec.field(default=0, name="turns")
    """The number of the next turn of this call; that of a retracted turn is not used again."""
    cold_count: int = msgspec.field(default=0, name="moved")
    user: str | None = None
    """The session's first user."""
    started: int | float | None = msgspec.field(default=None, name="began")
    """The voice platform's first timestamp in this call, as it wrote it."""
    created: float = 0.0
    updated: float = 0.0
    latest_request: LatestRequest | None = msgspec.field(default=None, name="newest")
    unheard: tuple[Entry, ...] = ()
    """The last answers of this call that no window showed; a late window may still show them."""
    state: dict[str, Any] = msgspec.field(default_factory=dict)
    """Values that the client stores."""
    agents: Agents | None = None
    summaries: tuple[Segment, ...] = ()
    """The summaries of the oldest turns, in order."""
    cleared_until: TurnRef = msgspec.field(default=START, name="cleared")
    """The newest turn when the summaries were cleared; none is made before a newer turn."""
    model: str | None = None
    """The model of the session's latest request."""
    trimmed: bool = False
    """Whether a summary is due because the last prompt had no room for all uncovered turns."""
    room: int = 0
    """How many messages of the user the prompt had room for then."""
    learned_until: TurnRef = msgspec.field(default=START, name="learnt")
    """The last turn from which facts were extracted."""
    shown_facts: ShownFacts | None = msgspec.field(default=None, name="told")
    """The facts that the prompts begin with."""
    shown_call: ShownCall | None = None
    """The earlier call that the prompts begin with."""
    noted_until: TurnRef = msgspec.field(default=NO_CALL, name="noted")
    """The last turn in its users' past calls; a call without noted turns is only listed there."""
    alias: str | None = None
    """The voice platform's name for ``user``, if that differs."""
    shared: bool = False
    """Whether others have spoken who cannot be told apart from ``user``."""
    scale: float = 0.0
    """How many tokens the model counts for each estimated one; 0 while unknown."""
    deletion: Deletion | None = msgspec.field(default=None, name="forgotten")
    """Marks of deleted lines that a voice platform may still show."""
    prompts: tuple[str, ...] = ()
    """The hashes of messages that the voice platform says by itself, on silence or on failure."""

    @property
    def has_older(self) -> bool:
        """Whether there were turns before the oldest entry, now in the cold part or deleted."""
        return self.cold_count > 0 or (self.deletion is not None and self.deletion.whole)

    @property
    def summarized_until(self) -> TurnRef:
        """The last turn that a summary covers."""
        return self.summaries[-1].end if self.summaries else START


def count_until(entries: Sequence[Entry], end: tuple[int, int]) -> int:
    """How many entries belong to turns up to and including ``end``."""
    return bisect_right(entries, end, key=_call_and_turn)


def made_anew(session: Session, former: Session) -> bool:
    """Whether a session was created again under the same name after ``former``."""
    return former.created > 0 and session.created != former.created


def with_unheard(session: Session, unheard: Iterable[Entry]) -> Session:
    """Adds answers that were not heard to a session, which has the newest four."""
    texts = {entry.generated for entry in session.unheard}
    answers = [e for e in unheard if e.role == "assistant" and e.text.strip() and e.generated not in texts]
    if not answers:
        return session
    return msgspec.structs.replace(session, unheard=(*session.unheard, *answers)[-_MAX_UNHEARD:])


# --- the order of turns -------------------------------------------------------------------------------------


def disorder(session: Session) -> str | None:
    """Describes the first entry or summary whose turn is out of order; ``None`` if there is none."""
    last = max((session.call, session.next_turn - 1), START)
    if session.call < 0 or session.next_turn < 0:
        return "'life' and 'turns' count from 0"
    parts: tuple[tuple[str, Sequence[Entry | Segment], TurnRef], ...] = (
        ("entry", session.entries, _FIRST),
        ("summary", session.summaries, START),
    )
    for name, items, first in parts:
        turns = [first, *(TurnRef(item.call, item.turn) for item in items)]
        for position, (before, turn) in enumerate(pairwise(turns), start=1):
            if turn < before:
                return f"{name} {position} goes back behind the turn before it"
        if items and turns[-1] > last:
            return f"{name} {len(items)} lies beyond 'life' and 'turns'"
    return None


# --- codec --------------------------------------------------------------------------------------------------


_ENTRIES: Final = _encode("entries")
_MAP: Final = b"\xde"


class _Owner(msgspec.Struct, frozen=True):
    user: str | None = None


def encode(session: Session) -> bytes:
    """Encodes a session for a store."""
    return extensible.encode(session)


class EncodedEntries(NamedTuple):
    """The first entries of a session, and their encoded bytes, concatenated."""

    entries: tuple[Entry, ...] = ()
    blob: bytes = b""


def encode_further(session: Session, former: EncodedEntries) -> tuple[bytes, EncodedEntries]:
    """Encodes a session like ``encode``, without encoding the ``former`` entries again.

    Returns the encoded entries for the next time as well: all but the newest, which the next window confirms
    or cuts.
    """
    entries, count = session.entries, len(former.entries)
    if session.unknown_fields or not entries:
        return extensible.encode(session), EncodedEntries()
    if entries[:count] != former.entries:
        count, former = 0, EncodedEntries()
    try:
        older = former.blob + b"".join(map(_encode, entries[count:-1]))
        newest = _encode(entries[-1])
        rest = _encode(msgspec.structs.replace(session, entries=()))
    except OverflowError:
        return extensible.encode(session), EncodedEntries()
    if rest[:1] != _MAP:
        return extensible.encode(session), EncodedEntries()
    # The map begins with the number of its fields, and the array of entries is the first.
    fields, head = int.from_bytes(rest[1:3]) + 1, _array_head(len(entries))
    blob = b"".join((_MAP, fields.to_bytes(2), _ENTRIES, head, older, newest, rest[3:]))
    return blob, EncodedEntries(entries[:-1], older)


def decode(blob: bytes) -> Session:
    """Decodes a session from a store's bytes. Raises Unreadable."""
    return extensible.decode(blob, Session)


def person_of(blob: bytes) -> str | None:
    """Decodes only a session's user, which is much faster. Raises Unreadable."""
    return extensible.decode(blob, _Owner).user
