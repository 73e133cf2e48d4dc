"""A session: entries in calls and turns, the values that it keeps beside them, and its codec.

A field with a ``name`` is stored under that name, which sessions in use have: it must not change.
"""

import hashlib
import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from itertools import pairwise
from operator import attrgetter
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
from msgspec import UNSET

from filters.injection import LastCall, users
from filters.message import Content, Message, epoch_seconds
from proxy.memory import extensible
from proxy.memory.errors import Unreadable
from proxy.memory.extensible import Extensible
from proxy.memory.speech import Speech, as_function_call
from proxy.memory.wording import text_hash

REASONING: Final = "reasoning_content"
"""The field of a message that brings a model's reasoning back to it; most models refuse it."""
COMMAND: Final = "command"
"""The source of what a program put in through the engine's interface."""
UNREADABLE: Final = (Unreadable, msgspec.DecodeError, UnicodeDecodeError)
"""What reading one session raises where its bytes are of no use, though the store answers."""
WITH_NEWEST: Final = -1
"""The position of facts that are shown with the newest words."""

# Before 2001 no voice engine spoke: a smaller number counts from something else than 1970.
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
T = TypeVar("T")


# --- turns and entries --------------------------------------------------------------------------------------


class TurnRef(NamedTuple):
    """Which turn: its number means nothing without its call. They sort in the order of the turns."""

    call: int
    turn: int


START: Final = TurnRef(0, -1)
"""Before all turns."""
NO_CALL: Final = TurnRef(-1, -1)
"""Before all calls."""
_FIRST: Final = TurnRef(0, 0)


class Entry(Extensible, frozen=True, kw_only=True, gc=False):
    """One message as it was heard.

    ``turn`` counts from 0 within a ``call`` and never goes back; ``turn_id`` is the platform's own number,
    where it numbers its turns. ``timestamp`` is as the engine wrote it. ``original`` is all that the model
    generated where the user heard less. ``pending`` is an answer that no later request has confirmed or cut
    yet: it is recorded as generated; ``broken``, if its stream ended before the answer did.
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
    """The user whom the request of these words names, where they name none themselves."""
    interrupted: bool = False
    interrupt_timestamp: int | float | None = None
    original: str | None = None
    pending: bool = False
    broken: bool = False
    reasoning: str | None = None
    """What the model thought before it answered, where that is kept."""
    replaced_hash: str | None = msgspec.field(default=None, name="replaced")
    """The hash of the words that these were put in the place of: an engine may show those yet."""
    recorded_at: float = msgspec.field(default=0.0, name="recorded")
    """When it was first recorded, in seconds since 1970."""

    @property
    def at(self) -> float:
        """When it was said, in seconds since 1970: as the engine says where that can be, else as recorded."""
        stamp = epoch_seconds(self.timestamp)
        if stamp is None or not _CLOCKS_FROM <= stamp <= self.recorded_at + _DAY:
            return self.recorded_at
        return stamp

    @property
    def turn_ref(self) -> TurnRef:
        """Its turn."""
        return TurnRef(self.call, self.turn)

    @property
    def speaker(self) -> str | None:
        """The user who said it, as far as its request or the message tells."""
        return self.asking_user or self.user

    @property
    def is_injected(self) -> bool:
        """Whether a program put it in: no user said it."""
        return self.role == "user" and self.source == COMMAND

    @property
    def text(self) -> str:
        """What was said: the content, or its text parts joined by a line break."""
        return self.content if isinstance(self.content, str) else Message(role="", content=self.content).text

    def replaces(self, text: str) -> bool:
        """Whether these words were put in the place of a text."""
        return self.replaced_hash is not None and self.replaced_hash == text_hash(text)

    @property
    def generated(self) -> str:
        """All that the model said, heard or not."""
        return self.text if self.original is None else self.original


def message_of(entry: Entry) -> Message:
    """An entry in Agora's own shape, as an engine would show it."""
    metadata: dict[str, Any] = {} if entry.source is None else {"source": entry.source}
    if entry.user is not None:
        metadata["user"] = entry.user
    if entry.interrupt_timestamp is not None:
        metadata["interrupt_timestamp"] = entry.interrupt_timestamp
    if entry.original is not None:
        metadata["original"] = entry.original
    if entry.interrupted:
        metadata["interrupted"] = True
    # Spelt out, because a turn may bring back all that an engine has dropped: no loop over names is as fast.
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
    """A summary of all turns behind the former segment's end, up to and with ``turn`` of ``call``.

    ``messages`` is how many messages these are, and ``fingerprint`` is theirs. ``created_at`` is in seconds
    since 1970. ``model`` wrote it; an ``extractive`` one is made of the turns' own
    sentences, until a model answers.
    One that is ``stale`` stands for turns that were corrected since. ``added`` is what it says beyond its
    turns, shortened where that is long: it could not be made of them again. ``speakers`` are the users, as
    far as they are known, whose words it rests on.
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
        """The last turn that it stands for."""
        return TurnRef(self.call, self.turn)


def entries_fingerprint(entries: Sequence[Entry]) -> str:
    """Sixteen hex digits that stand for what entries say, call and return, and for their turns."""
    # Of an array as JSON, which is never put together: while the encoder runs, nothing else does.
    encoded, separator = hashlib.sha256(), b"["
    for entry in entries:
        encoded.update(separator + msgspec.json.encode(essence(entry)))
        separator = b","
    encoded.update(b"]" if entries else b"[]")
    return encoded.hexdigest()[:16]


def essence(entry: Entry) -> tuple[object, ...]:
    """What of an entry a summary rests on: its turn, its words, its calls."""
    calls = [str(call.get("function")) for call in entry.tool_calls or ()]
    return (*entry.turn_ref, entry.role, entry.text, calls, entry.tool_call_id)


# --- requests -----------------------------------------------------------------------------------------------


class Attempt(NamedTuple):
    """What tells a retry from a new turn, where the words do not.

    ``name_digest`` stands for the name that the client gave the request, and is empty where it gave none.
    ``is_retry`` is whether the client says that it sends the request again; ``None`` where it says nothing.
    """

    name_digest: bytes = b""
    is_retry: bool | None = None


class Arrival(NamedTuple):
    """An attempt, and when it arrived, in seconds since 1970: later than anything, where that is left out."""

    attempt: Attempt = Attempt()
    at: float = math.inf


NO_ATTEMPT: Final = Attempt()
"""A request that says nothing of itself."""
ARRIVES_NOW: Final = Arrival()
"""One that arrives now."""


def attempt(name: str | None, *, is_retry: bool | None) -> Attempt:
    """An attempt at the request that a client calls ``name``."""
    if name is None:
        return Attempt(b"", is_retry)
    return Attempt(blake2b(name.encode("utf-8", "replace"), digest_size=_NAME_BYTES).digest(), is_retry)


class QuestionRef(NamedTuple):
    """Which words of the user: their turn, whose number means nothing without its call.

    ``question`` tells which words of a turn that has several: -1 are the last of them, -2 those before; 0 are
    none, where the model speaks unasked behind what the turn has.
    """

    call: int
    turn: int
    question: int = -1

    @property
    def unasked(self) -> bool:
        """Whether these are no words at all."""
        return self.question == 0


class LatestRequest(Extensible, frozen=True, kw_only=True, gc=False):
    """What a session keeps of the latest request that it has recorded.

    ``at`` is when it arrived, in seconds since 1970, and ``fingerprint`` tells its window, of ``line_count``
    lines, from others. ``start`` is where the window begins, counted from the session's first entry, those of
    the cold part too; ``shows_call_start`` is whether its call does not begin before. ``shows_answers`` is
    whether it tells what the assistant said, and ``wordless`` whether that is nothing but that it was not
    heard. ``question`` are the words to be answered. ``overtaken`` are requests that arrived before it and
    were recorded after it: their fingerprints and questions. ``name_digest`` stands for its name, where the
    client gave it one. ``ended`` is when its answer ended, 0 where that is not known, and ``finished``
    whether that was its end.
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
        """The words that the request with this fingerprint asked to be answered."""
        return self.question if fingerprint == self.fingerprint else dict(self.overtaken).get(fingerprint)

    def with_overtaken(self, fingerprint: bytes, question: QuestionRef | None) -> "LatestRequest":
        """The same, once it has overtaken another request too; it knows the last four."""
        overtaken = (*self.overtaken, (fingerprint, question))[-_MAX_OVERTAKEN:]
        return msgspec.structs.replace(self, overtaken=overtaken)


def encoded_lines(lines: Sequence[Message]) -> bytes:
    """Lines as bytes, one behind the other; none where one cannot be encoded."""
    try:
        return _encode(lines)[len(_array_head(len(lines))) :]
    except (OverflowError, UnicodeEncodeError):
        return b""


def decoded_lines(encoded: bytes, count: int) -> list[Message]:
    """So many lines from their bytes."""
    return _decode_lines(_array_head(count) + encoded)


def goes_on(lines: bytes, former: bytes, newest: bytes) -> bool:
    """Whether encoded lines are the last of the ``former`` ones and then, to their end, the ``newest``."""
    return len(lines) > len(newest) and former.endswith(lines[: -len(newest)])


def request_fingerprint(
    speech: Speech,
    attempt: Attempt = NO_ATTEMPT,
    encoded: bytes = b"",
    *,
    shows_answers: bool | None = None,
) -> bytes:
    """Eight bytes that are the same for the same speech; of a single line, the request's name counts too.

    ``encoded`` are its lines, where they are encoded already. ``shows_answers`` gives that of the same lines
    in a window that does or does not.
    """
    lines = speech.lines or speech.instructions
    if any(map(_others, lines)):
        lines = [msgspec.structs.replace(line, others={}) if line.others else line for line in lines]
        encoded = b""
    try:
        blob = _array_head(len(lines)) + encoded if encoded else msgspec.msgpack.encode(lines)
    except (OverflowError, UnicodeEncodeError):
        # Numbers of more than 64 bits and halves of characters.
        blob = repr(lines).encode("utf-8", "replace")
    if len(speech.lines) == 1:
        blob += attempt.name_digest
    key = b"answering" if (speech.shows_answers if shows_answers is None else shows_answers) else b"silent"
    return blake2b(blob, digest_size=_FINGERPRINT_BYTES, key=key).digest()


def _array_head(size: int) -> bytes:
    """How an array of so many values begins, in MessagePack."""
    if size < 16:  # noqa: PLR2004 - the short form counts in four bits
        return bytes((0x90 + size,))
    return b"\xdc" + size.to_bytes(2) if size < 1 << 16 else b"\xdd" + size.to_bytes(4)


# --- the session --------------------------------------------------------------------------------------------


class LineDigests(NamedTuple):
    """The digests of a deleted line: of its words, and of its place in the engine's count, if it has one."""

    words: bytes
    stamp: bytes = b""


class Deletion(Extensible, frozen=True, kw_only=True, gc=False):
    """What was said before a deletion, ``at`` seconds since 1970, and is never to be recorded again.

    ``open`` is whether no window has come since: the first one shows what is forgotten. ``whole`` is whether
    that is all until then, or what one of several users said.
    """

    at: float
    marks: tuple[LineDigests, ...] = ()
    whole: bool = False
    open: bool = False


class Agents(Extensible, frozen=True, gc=False):
    """The ids of the last events of agents, and the session's ``calls`` by the agents' ids."""

    event_ids: tuple[str, ...] = msgspec.field(name="notices")
    calls: dict[str, int] = msgspec.field(name="lives")


class ShownFacts(Extensible, frozen=True, kw_only=True, gc=False):
    """Which facts stand still in a session's prompts from one compaction to the next; no word of them.

    ``epoch`` names the time between two compactions. ``facts`` are the ids of what is shown of ``user`` at
    the prompts' head, in order, and ``others`` of what was known then too. ``news`` came to be known since:
    each id with the message of the user, counted from 0, that it was first shown with. ``at`` is when any of
    that changed, in seconds since 1970.
    """

    user: str = msgspec.field(name="person")
    epoch: bytes
    at: float
    facts: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    news: tuple[tuple[str, int], ...] = ()


class ShownCall(Extensible, frozen=True, kw_only=True, gc=False):
    """What the prompts of a call tell of an earlier one of ``user``, and of the profile, from its start on.

    It stays as it is until the call ends. The earlier call was in ``session``, and ``speakers`` are the users
    who spoke in it.
    """

    call: int
    user: str
    profile: str = ""
    last_call: LastCall | None = None
    session: str = ""
    speakers: tuple[str, ...] = ()


def with_positions(facts: ShownFacts | None, prompt: Sequence[Message]) -> ShownFacts | None:
    """The same, once the prompt is known in which the news was shown ``WITH_NEWEST``."""
    if not (facts and facts.news) or all(position != WITH_NEWEST for _, position in facts.news):
        return facts
    newest = len(users(prompt)) - 1
    news = ((name, newest if position == WITH_NEWEST else position) for name, position in facts.news)
    return msgspec.structs.replace(facts, news=tuple(news))


class Session(Extensible, frozen=True, kw_only=True, gc=False):
    """What is recorded of one conversation, without system messages. Times are in seconds since 1970."""

    entries: tuple[Entry, ...] = ()
    """The newest, in order; older ones have moved to the cold part, ``cold_count`` of them so far."""
    call: int = msgspec.field(default=0, name="life")
    """Each time that the engine begins anew, with turns counted from the start, is another call."""
    next_turn: int = msgspec.field(default=0, name="turns")
    """The number of the next turn of this call; a turn that is retracted takes its number along."""
    cold_count: int = msgspec.field(default=0, name="moved")
    user: str | None = None
    """The session's first user."""
    started: int | float | None = msgspec.field(default=None, name="began")
    """The first time that the engine wrote to a message of this call, as it wrote it."""
    created: float = 0.0
    updated: float = 0.0
    latest_request: LatestRequest | None = msgspec.field(default=None, name="newest")
    unheard: tuple[Entry, ...] = ()
    """The last answers of this call that no window showed: one that comes late may show them yet."""
    state: dict[str, Any] = msgspec.field(default_factory=dict)
    """The client's own."""
    agents: Agents | None = None
    summaries: tuple[Segment, ...] = ()
    """They stand for the oldest turns, in order."""
    cleared_until: TurnRef = msgspec.field(default=START, name="cleared")
    """The newest turn when they were cleared: none is made before the next one."""
    model: str | None = None
    """The model that the session last asked."""
    trimmed: bool = False
    """Whether a summary is due because the last prompt had no room for all that no summary covers."""
    room: int = 0
    """For how many messages of the user it had room then."""
    learned_until: TurnRef = msgspec.field(default=START, name="learnt")
    """The last turn that was looked at for facts."""
    shown_facts: ShownFacts | None = msgspec.field(default=None, name="told")
    """The facts that the prompts begin with."""
    shown_call: ShownCall | None = None
    """The earlier call that the prompts begin with."""
    noted_until: TurnRef = msgspec.field(default=NO_CALL, name="noted")
    """The last turn in its users' past calls; before a call's first turn, the call is merely listed there."""
    alias: str | None = None
    """What the engine calls ``user``, where that is another name."""
    shared: bool = False
    """Whether others have spoken whom nothing tells from ``user``."""
    scale: float = 0.0
    """How many tokens the model counts for each that is estimated, 0 where it has not said."""
    deletion: Deletion | None = msgspec.field(default=None, name="forgotten")
    """What was deleted and an engine may still show."""
    prompts: tuple[str, ...] = ()
    """The hashes of what the engine was seen to say by itself, against a silence or for a failure."""

    @property
    def has_older(self) -> bool:
        """Whether there was talk before the oldest entry: moved to the cold part, or forgotten."""
        return self.cold_count > 0 or (self.deletion is not None and self.deletion.whole)

    @property
    def summarized_until(self) -> TurnRef:
        """The last turn that a summary covers."""
        return self.summaries[-1].end if self.summaries else START


def count_until(entries: Sequence[Entry], end: tuple[int, int]) -> int:
    """How many entries are of turns up to and with one."""
    return bisect_right(entries, end, key=_call_and_turn)


def made_anew(session: Session, former: Session) -> bool:
    """Whether a session was made anew under its name since it was ``former``."""
    return former.created > 0 and session.created != former.created


def with_unheard(session: Session, unheard: Iterable[Entry]) -> Session:
    """The session with answers that were not heard; it keeps the newest four."""
    known = {entry.generated for entry in session.unheard}
    answers = [e for e in unheard if e.role == "assistant" and e.text.strip() and e.generated not in known]
    if not answers:
        return session
    return msgspec.structs.replace(session, unheard=(*session.unheard, *answers)[-_MAX_UNHEARD:])


# --- the order of turns -------------------------------------------------------------------------------------


def disorder(session: Session) -> str | None:
    """Which of a session's turns goes back, or lies beyond all that there were; ``None`` where none does."""
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
    """A session as bytes for a store."""
    return extensible.encode(session)


class EncodedEntries(NamedTuple):
    """A session's first entries, and their bytes, one after the other."""

    entries: tuple[Entry, ...] = ()
    blob: bytes = b""


def encode_further(session: Session, former: EncodedEntries) -> tuple[bytes, EncodedEntries]:
    """What ``encode`` returns, without encoding the ``former`` entries again, and these for the next time.

    They are all but the newest entry, which the next window confirms or cuts.
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
    # The map begins with the number of its fields; the first of them are the entries, an array.
    fields, head = int.from_bytes(rest[1:3]) + 1, _array_head(len(entries))
    blob = b"".join((_MAP, fields.to_bytes(2), _ENTRIES, head, older, newest, rest[3:]))
    return blob, EncodedEntries(entries[:-1], older)


def decode(blob: bytes) -> Session:
    """A session from a store's bytes; raises msgspec.DecodeError for anything else."""
    return _decoded(blob, Session)


def person_of(blob: bytes) -> str | None:
    """A session's user, in a fraction of the time that all of it takes; raises msgspec.DecodeError."""
    return _decoded(blob, _Owner).user


def _decoded(blob: bytes, kind: type[T]) -> T:
    try:
        return extensible.decode(blob, kind)
    except (UnicodeDecodeError, RecursionError) as error:
        raise msgspec.DecodeError(f"it holds no session: {type(error).__name__}") from None
