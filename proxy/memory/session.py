"""A session as it is held, and the values that it is made of; nothing here knows an engine's window.

``entry`` first: one message as it was heard. Then ``session``: entries, in lives and turns. And what it
keeps beside them: ``segment`` (a summary and how far it reaches), ``newest`` and ``retry`` (the newest
request, and whether one comes again), ``told`` (facts at the prompts' head), ``agents``, ``forgotten``,
``unheard``, ``prompts``, and who speaks (``speaker``, ``guests``). ``order`` and ``fingerprint`` are rules
for entries; ``cold`` reads those that moved out of a call's way.
"""

import hashlib
import math
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import msgspec
from msgspec import UNSET

from filters.injection import users
from filters.message import Content, Message, epoch_seconds
from proxy.memory.errors import Unreadable
from proxy.memory.speech import Speech, as_function_call
from proxy.memory.wording import text_hash

REASONING: Final = "reasoning_content"
"""The field of a message that brings a model's reasoning back to it; most models refuse it."""
COMMAND: Final = "command"
"""The source of what a program put in through the engine's interface."""
# Before 2001 no voice engine spoke: a smaller number counts from something else than 1970.
_CLOCKS_FROM: Final = 1e9
_DAY: Final = 86_400.0
WITH_NEWEST: Final = -1
"""The place of what is told with the newest words."""
_BYTES = 8
_KNOWN = 4
_KEYS = (b"silent", b"answering")
S = TypeVar("S", bound=msgspec.Struct)
T = TypeVar("T")
UNREADABLE: Final = (Unreadable, msgspec.DecodeError, UnicodeDecodeError)
"""What reading one session raises where its bytes are of no use, though the store answers."""
_ASIDE = 4


class TurnRef(NamedTuple):
    """Which turn: its number means nothing without its life. Turns are in the order in which they were."""

    call: int
    turn: int


START = TurnRef(0, -1)
"""Before all turns."""


class Segment(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What stands for all turns behind the former segment's reach, up to and with turn ``turn`` of ``life``.

    ``messages`` is how many messages that are, and ``fingerprint`` is theirs. ``made`` is in seconds since
    1970. ``model`` made it; a ``digest`` is made of the turns' own sentences, until a model answers. One that
    is ``stale`` stands for turns that were corrected since. ``added`` is what it tells beyond its turns,
    in short where that is long: nobody could make it of them again.
    """

    text: str
    call: int = msgspec.field(name="life")
    turn: int
    messages: int = 0
    fingerprint: str = ""
    created_at: float = msgspec.field(default=0.0, name="made")
    model: str | None = None
    digest: bool = False
    stale: bool = False
    added: str = ""

    @property
    def end(self) -> TurnRef:
        """The last turn that it stands for."""
        return TurnRef(self.call, self.turn)


class Entry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One message as it was heard.

    ``turn`` counts from 0 within a ``life`` and never goes back; ``engine_turn`` is the number that the
    engine gave it, where it numbers its turns. ``timestamp`` is as the engine wrote it. ``original`` is all
    that the model generated where the caller heard less. ``pending`` is an answer that no later request has
    confirmed or cut yet: it is held as generated; ``broken``, if its stream ended before the answer did.
    """

    role: str
    turn: int
    call: int = msgspec.field(default=0, name="life")
    engine_turn: int | None = None
    content: Content = None
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    timestamp: int | float | None = None
    source: str | None = None
    user: str | None = None
    asking_user: str | None = msgspec.field(default=None, name="asker")
    """Whom the request named that asked with these words, where they name nobody."""
    interrupted: bool = False
    interrupt_timestamp: int | float | None = None
    original: str | None = None
    pending: bool = False
    broken: bool = False
    reasoning: str | None = None
    """What the model thought before it answered, where that is kept."""
    replaced_hash: str | None = msgspec.field(default=None, name="replaced")
    """The imprint of the words that somebody put these in the place of: an engine may replay those yet."""
    recorded_at: float = msgspec.field(default=0.0, name="recorded")
    """When it was first recorded, in seconds since 1970."""

    @property
    def at(self) -> float:
        """When it was said, in seconds since 1970: as the engine says where that can be, else as recorded."""
        told = epoch_seconds(self.timestamp)
        can_be = told is not None and _CLOCKS_FROM <= told <= self.recorded_at + _DAY
        return told if told is not None and can_be else self.recorded_at

    @property
    def turn_ref(self) -> TurnRef:
        """Its turn."""
        return TurnRef(self.call, self.turn)

    @property
    def speaker(self) -> str | None:
        """Who said it, as far as its request or the message tells."""
        return self.asking_user or self.user

    @property
    def is_injected(self) -> bool:
        """Whether a program spoke in the user's place: nobody said it."""
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
    return as_function_call(message) if entry.tool_calls or entry.tool_call_id else message


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


class Mark(NamedTuple):
    """What a line is known again by: its words, and its place in the engine's count, if it has one."""

    words: bytes
    stamp: bytes = b""


class Forgotten(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What was said before a deletion, ``at`` seconds since 1970, which is never to be held again.

    ``open`` is whether no window has come since: the first one shows what is forgotten. ``whole`` is whether
    all of the talk until then is, or what one of several said.
    """

    at: float
    marks: tuple[Mark, ...] = ()
    whole: bool = False
    open: bool = False


class Agents(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """The ids of its last ``notices``, and which of the session's ``lives`` is whose, by the agents' ids."""

    event_ids: tuple[str, ...] = msgspec.field(name="notices")
    calls: dict[str, int] = msgspec.field(name="lives")


class ShownFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What stands still in a session's prompts from one compaction to the next; no word of it.

    ``epoch`` names the time between two compactions. ``facts`` are the ids of what is told of ``person`` at
    their head, in order, and ``others`` of what was known then too. ``news`` came to be known since: each id
    with the message of the user, counted from 0, that it was first told with. ``at`` is when any of that
    changed, in seconds since 1970.
    """

    user: str = msgspec.field(name="person")
    epoch: bytes
    at: float
    facts: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    news: tuple[tuple[str, int], ...] = ()


def with_positions(told: ShownFacts | None, shown: Sequence[Message]) -> ShownFacts | None:
    """The same, once the prompt is known in which the news was told ``NOW``."""
    if told is None or not any(place == WITH_NEWEST for _, place in told.news):
        return told
    newest = len(users(shown)) - 1
    return msgspec.structs.replace(
        told, news=tuple((name, newest if place == WITH_NEWEST else place) for name, place in told.news)
    )


_NAME_BYTES = 6


class Attempt(NamedTuple):
    """What tells a retry from a new turn, where the words do not.

    ``request`` stands for the name that the client gave the request, and is empty where it gave none.
    ``again`` is whether the client says that it sends the request once more; ``None`` where it says nothing.
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
    """An attempt at the request that a client calls ``name``: a few bytes stand for it."""
    if name is None:
        return Attempt(b"", is_retry)
    return Attempt(blake2b(name.encode("utf-8", "replace"), digest_size=_NAME_BYTES).digest(), is_retry)


class QuestionRef(NamedTuple):
    """Which words of the user: their turn, whose number means nothing without its life.

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


class LatestRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What a session keeps of the newest request that it has taken in.

    ``at`` is when it arrived, in seconds since 1970, and ``seal`` what tells its window from others, of
    ``lines`` lines. ``since`` is where the window begins, counted from the session's first entry, moved ones
    too; ``whole`` is whether its life does not begin before. ``answering`` is whether it tells what the
    assistant said, and ``wordless`` whether that is nothing but that it was not heard. ``asked`` are the
    words to be answered. ``overtaken`` are requests that arrived before it and were recorded after it: their
    seals, and what they asked. ``request`` stands for its name, where the client gave it one. ``ended`` is
    when its answer ended, 0 where that is not known, and ``finished`` whether that was its end.
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

    def includes(self, sealed: bytes) -> bool:
        """Whether the request with this seal has been taken in."""
        return sealed == self.fingerprint or any(sealed == other for other, _ in self.overtaken)

    def question_of(self, sealed: bytes) -> QuestionRef | None:
        """The words that the request with this seal asked to be answered."""
        return self.question if sealed == self.fingerprint else dict(self.overtaken).get(sealed)

    def with_overtaken(self, sealed: bytes, asked: QuestionRef | None) -> "LatestRequest":
        """The same, once it has overtaken another request too; the last four are known again."""
        overtaken = (*self.overtaken, (sealed, asked))[-_KNOWN:]
        return msgspec.structs.replace(self, overtaken=overtaken)


def request_fingerprint(speech: Speech, attempt: Attempt = NO_ATTEMPT) -> bytes:
    """Eight bytes that are the same for the same speech, and hardly for other speech.

    Where that is a line alone, a request's name counts as well.
    """
    return _digest_of(_encoded_lines(speech, attempt), answering=speech.shows_answers)


def request_fingerprints(speech: Speech, attempt: Attempt = NO_ATTEMPT) -> tuple[bytes, bytes]:
    """The seals of the same lines, where they tell what the assistant said and where they do not."""
    said = _encoded_lines(speech, attempt)
    return _digest_of(said, answering=True), _digest_of(said, answering=False)


def _digest_of(said: bytes, *, answering: bool) -> bytes:
    return blake2b(said, digest_size=_BYTES, key=_KEYS[answering]).digest()


def _encoded_lines(speech: Speech, attempt: Attempt) -> bytes:
    said = speech.lines or speech.instructions
    lines = [msgspec.structs.replace(line, others={}) if line.others else line for line in said]
    return _written(lines) + (attempt.name_digest if len(speech.lines) == 1 else b"")


def _written(lines: Sequence[Message]) -> bytes:
    try:
        return msgspec.msgpack.encode(lines)
    except (OverflowError, UnicodeEncodeError):
        # Numbers of more than 64 bits and halves of characters.
        return repr(lines).encode("utf-8", "replace")


class Placed(Protocol):
    """What is of one turn, or reaches to it."""

    @property
    def call(self) -> int:
        """The turn's life."""
        ...

    @property
    def turn(self) -> int:
        """Its number in that life."""
        ...


def going_back(placed: Sequence[Placed], least: TurnRef) -> int | None:
    """The position of the first that is of an earlier turn than the one before it, or than ``least``."""
    # Whoever reads a session asks this: comparing numbers takes a tenth of what making places does.
    life, turn = least
    for position, one in enumerate(placed):
        if one.call < life or (one.call == life and one.turn < turn):
            return position
        life, turn = one.call, one.turn
    return None


def risen(placed: Sequence[S], least: TurnRef, most: TurnRef | None = None) -> Iterator[S]:
    """All of them as they stand, what goes back or lies outside being of the nearest turn that does not."""
    for one in placed:
        own = TurnRef(one.call, one.turn)  # type: ignore[attr-defined]
        least = max(own, least)
        least = least if most is None else min(least, most)
        yield one if own == least else msgspec.structs.replace(one, call=least.call, turn=least.turn)


_FIRST: Final = TurnRef(0, 0)


class Session(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What is held of one conversation, without system messages. Times are in seconds since 1970."""

    entries: tuple[Entry, ...] = ()
    """The newest, in order; older ones have moved to the cold part, ``moved`` of them so far."""
    call: int = msgspec.field(default=0, name="life")
    """Each time that the engine begins anew, with turns counted from the start, is another life."""
    next_turn: int = msgspec.field(default=0, name="turns")
    """The number that the next turn of this life will bear; one that is withdrawn takes its number along."""
    cold_count: int = msgspec.field(default=0, name="moved")
    user: str | None = None
    """The session's first user."""
    started: int | float | None = msgspec.field(default=None, name="began")
    """The first time that the engine wrote to a message of this life, as it wrote it."""
    created: float = 0.0
    updated: float = 0.0
    latest_request: LatestRequest | None = msgspec.field(default=None, name="newest")
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
    learned_until: TurnRef = msgspec.field(default=START, name="learnt")
    """The last turn that was looked at for facts."""
    shown_facts: ShownFacts | None = msgspec.field(default=None, name="told")
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
    def has_older(self) -> bool:
        """Whether there was talk before the oldest entry that is held here: moved away, or forgotten."""
        return self.cold_count > 0 or (self.forgotten is not None and self.forgotten.whole)

    @property
    def summarized_until(self) -> TurnRef:
        """The last turn that a summary covers."""
        return self.summaries[-1].end if self.summaries else START


def made_anew(session: Session, former: Session) -> bool:
    """Whether a session was made anew under its name since it was ``former``."""
    return former.created > 0 and session.created != former.created


def ordered(session: Session) -> Session:
    """The session with its turns in order: earlier versions may have written some that go back."""
    if disorder(session) is None:
        return session
    entries = tuple(risen(session.entries, _FIRST))
    last = max(
        entries[-1].turn_ref if entries else START, TurnRef(session.call, session.next_turn - 1), START
    )
    return msgspec.structs.replace(
        session,
        entries=entries,
        call=last.call,
        next_turn=last.turn + 1,
        summaries=tuple(risen(session.summaries, START, last)),
    )


def disorder(session: Session) -> str | None:
    """Which of a session's turns goes back, or lies beyond all that there were; ``None`` where none does."""
    last = max((session.call, session.next_turn - 1), START)
    if session.call < 0 or session.next_turn < 0:
        return "'life' and 'turns' count from 0"
    told = (("entry", session.entries, _FIRST), ("summary", session.summaries, START))
    for name, placed, least in told:
        back = going_back(placed, least)
        if back is not None:
            return f"{name} {back + 1} goes back behind the turn before it"
        if placed and (placed[-1].call, placed[-1].turn) > last:
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


def with_unheard(held: Session, unheard: Iterable[Entry]) -> Session:
    """The session with answers that were not heard kept aside; four of them, the newest."""
    known = {entry.generated for entry in held.unheard}
    answers = [e for e in unheard if e.role == "assistant" and e.text.strip() and e.generated not in known]
    return msgspec.structs.replace(held, unheard=(*held.unheard, *answers)[-_ASIDE:]) if answers else held


def entries_fingerprint(entries: Sequence[Entry]) -> str:
    """Sixteen hex digits that stand for what entries say, call and return, and for their turns."""
    told = [essence(entry) for entry in entries]
    return hashlib.sha256(msgspec.json.encode(told)).hexdigest()[:16]


def essence(entry: Entry) -> tuple[object, ...]:
    """What of an entry a summary rests on: its turn, its words, its calls."""
    calls = [str(call.get("function")) for call in entry.tool_calls or ()]
    return (*entry.turn_ref, entry.role, entry.text, calls, entry.tool_call_id)
