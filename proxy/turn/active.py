"""The turns that are being answered, and which of them a newer request supersedes."""

import asyncio
import hashlib
import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Self

import msgspec

from filters.message import LARGEST, SYSTEM, Message, newest_user
from proxy.clock import wall_time
from proxy.errors import Superseded
from proxy.http.reply import Reply
from proxy.memory.stores.store import Key
from proxy.memory.tasks import LargeWork
from proxy.memory.wording import continues, same_words
from proxy.newest import Newest
from proxy.turn.request import ClientRequest

# Nobody speaks as long as this in one breath: what is longer is no transcript, and takes long to compare.
_LONGEST_UTTERANCE = 20_000
# A hang-up that came before a request is seen by then.
_ROUNDS = 3
# How far apart two requests may be read of which either may have been sent first: at different hosts, or by a
# server that was held up. In so short a time people add to what they said, and hardly ever take it back.
_JITTER = 0.25
_MOST_RIVALS = 16
Slot = tuple[Key, str]
"""A session, and the pipeline that it talks through."""
GlobalId = tuple[bytes, int, int]
"""An id that is unique among hosts: the host, a process on it, and that process's counter."""
TurnOrder = tuple[float] | tuple[float, int] | tuple[float, GlobalId]
"""When a turn entered, and a tie-breaker; turns that are compared have it from one clock."""


class ActiveTurns:
    """The turns that this process is answering, by session and pipeline.

    ``publish`` is called with each turn that enters, a moment later; it is set where there are other
    processes. ``large_work`` decodes and encodes large bodies in a thread, one at a time.
    """

    def __init__(self) -> None:
        self.publish: Callable[[Slot, ActiveTurn], None] | None = None
        self.large_work = LargeWork()
        self._turns: dict[Slot, list[ActiveTurn]] = {}
        self._rivals: dict[Slot, Newest[GlobalId, Rival]] = {}
        self._numbers = itertools.count(1)

    def __len__(self) -> int:
        return sum(map(len, self._turns.values()))

    def __iter__(self) -> "Iterator[tuple[Slot, ActiveTurn]]":
        return iter([(slot, turn) for slot, turns in self._turns.items() for turn in turns])

    def has(self, slot: Slot) -> bool:
        """Whether a turn of a session and a pipeline is being answered."""
        return slot in self._turns

    def add(self, slot: Slot, turn: "ActiveTurn") -> Sequence["ActiveTurn"]:
        """Adds a turn and cancels those that it supersedes; returns the turns that were active before.

        A turn that was sent before another and read after it is cancelled itself.
        """
        turns = self._turns.setdefault(slot, [])
        others = tuple(turns)
        for other in others:
            if not other.is_cancellable:
                continue
            claim = other.claim
            if supersedes(turn.claim, claim):
                if is_newer(claim, (other.entered_at, 0), turn.claim, (turn.entered_at, 1)):
                    turn.cancel(other.entered_at)
                else:
                    other.cancel(turn.entered_at)
        turns.append(turn)
        if self.publish is not None:
            turn.number = next(self._numbers)
            asyncio.get_running_loop().call_soon(self.publish, slot, turn)
        return others

    def remove(self, slot: Slot, turn: "ActiveTurn") -> None:
        """Removes a turn that has ended."""
        turns = self._turns[slot]
        turns.remove(turn)
        if not turns:
            del self._turns[slot]
            self._rivals.pop(slot, None)

    def cancel_superseded(self, slot: Slot, at: float, claim: "Callable[[], TurnClaim]") -> None:
        """Cancels the turns that are superseded by one of another process, which entered ``at`` that time."""
        others = [turn for turn in self._turns.get(slot, ()) if turn.is_cancellable]
        others = [turn for turn in others if turn.entered_at < at + _JITTER]
        if not others:
            return
        newer = claim()
        for turn in others:
            if is_newer(newer, (at,), turn.claim, (turn.entered_at,)):
                turn.cancel(at)

    def set_order(self, slot: Slot, own: GlobalId, at: float) -> None:
        """Sets when one of these turns entered, by the clock that all hosts share."""
        for turn in self._turns.get(slot, ()):
            if turn.number == own[2]:
                turn.shared_order = own, at
                for rival in tuple(self._rivals.get(slot, {}).values()):
                    turn.contend(rival)

    def contend(self, slot: Slot, rival: "Rival") -> Sequence["ActiveTurn"]:
        """Cancels those of a slot's turns that a rival supersedes; returns those that supersede the rival."""
        self._rivals.setdefault(slot, Newest(_MOST_RIVALS)).put(rival.id, rival)
        return [turn for turn in tuple(self._turns[slot]) if turn.contend(rival)]


class Rival(msgspec.Struct, frozen=True):
    """A turn that another host answers; it entered ``at`` a time of the clock that all hosts share."""

    id: GlobalId
    at: float
    claim: "TurnClaim"


class ActiveTurn:
    """A turn while it is answered, as a context manager: its end raises Superseded where it was superseded.

    ``shared_order`` is its id and when it entered by the clock that all hosts share, once that is known.
    """

    def __init__(self, turns: ActiveTurns, slot: Slot | None, claim: "TurnClaim", reply: Reply) -> None:
        self._claim = claim
        self._read_claim: Callable[[], TurnClaim] | None = None
        self.entered_at = time.monotonic()
        self.number = 0
        self.shared_order: tuple[GlobalId, float] | None = None
        self._turns = turns
        self._slot = slot
        self._reply = reply
        self._newer_entered_at: float | None = None

    def __enter__(self) -> Self:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101
        self.task = task
        self._cancellations = task.cancelling()
        self.others = () if self._slot is None else self._turns.add(self._slot, self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None
    ) -> None:
        if self._slot is not None:
            self._turns.remove(self._slot, self)
        self.others = ()
        if self._newer_entered_at is None:
            return
        # Our own cancellation is taken back; one of a hang-up or of the server's end goes on.
        is_only_ours = self.task.uncancel() <= self._cancellations
        if is_only_ours and kind is asyncio.CancelledError:
            raise Superseded("A newer request for the same turn has taken this one's place.") from None

    @property
    def claim(self) -> "TurnClaim":
        """What decides which of two turns supersedes the other."""
        return self._claim if self._read_claim is None else self._read_claim()

    def release_claim(self, read: "Callable[[], TurnClaim]") -> None:
        """Frees the request's messages; ``read`` decodes them again if another turn of the session comes."""
        if self._turns.publish is None:  # else it is asked for with each turn
            self._claim, self._read_claim = NO_CLAIM, read

    @property
    def is_cancellable(self) -> bool:
        """Whether it may still be superseded: not once its last bytes are on their way."""
        return self._newer_entered_at is None and not self._reply.ending

    def asked_at(self, at: float) -> float:
        """The time under which the turn is recorded: ``at``, but before a turn that superseded it."""
        if self._newer_entered_at is None:
            return at
        return min(at, wall_time() - (time.monotonic() - self._newer_entered_at))

    @property
    def is_over(self) -> bool:
        """Whether its last bytes are being sent, or its client has left or may have."""
        reply = self._reply
        return reply.ending or reply.may_have_left or self.task.cancelling() > self._cancellations

    async def others_ended(self, *, within: float) -> None:
        """Waits until the session's other turns that are over are recorded, ``within`` so many seconds."""
        for _ in range(_ROUNDS):
            await asyncio.sleep(0)
        if ending := {turn.task for turn in self.others if turn.is_over}:
            await asyncio.wait(ending, timeout=None if math.isinf(within) else within)

    def contend(self, rival: "Rival") -> bool:
        """Cancels the turn if a rival supersedes it; returns whether it supersedes the rival.

        The rival's host decides the same.
        """
        if self.shared_order is None or not self.is_cancellable:
            return False
        own, at = self.shared_order
        if is_newer(rival.claim, (rival.at, rival.id), self.claim, (at, own)):
            # Each is recorded by its own host's clock, and these are some hundredths of a second apart.
            self.cancel(self.entered_at + rival.at - at - _JITTER)
            return False
        return is_newer(self.claim, (at, own), rival.claim, (rival.at, rival.id))

    def cancel(self, newer_entered_at: float) -> None:
        """Cancels the turn in favour of a newer one; ``newer_entered_at`` is by this process's clock."""
        self._newer_entered_at = newer_entered_at
        self.task.cancel()


class TurnClaim(msgspec.Struct, frozen=True, gc=False):
    """What decides which of two turns is newer; if ``short``, hashes stand for all but the newest words."""

    turn_id: int | None = msgspec.field(name="number")
    messages: Sequence[Message]
    short: bool = False

    def condensed(self) -> Self:
        """The newest words, and a hash of the rest: few bytes.

        It compares as the whole does, but earlier lines must be equal to the letter: a comparison word by
        word would block the event loop for milliseconds.
        """
        newest = newest_user(self.messages)
        history = _speech(self.messages[: newest or 0])
        digest = _digest([(each.role, each.tool_calls or None, each.text) for each in history])
        messages = [Message(role="assistant", content=digest, name=_digest(self.messages))]
        if newest is not None:
            last = self.messages[newest]
            text = last.text[: _LONGEST_UTTERANCE + 1]
            messages.append(
                Message(role=last.role, content=text, name=last.name, metadata={"user": last.user})
            )
        return type(self)(self.turn_id, messages, short=True)


NO_CLAIM = TurnClaim(None, ())


def request_turn_id(request: ClientRequest) -> int | None:
    """The platform's number of the turn that a request asks for: the request's, else its newest words'."""
    turn_id = request.field("turn_id")
    if type(turn_id) is not int or abs(turn_id) > LARGEST:
        newest = newest_user(request.messages)
        turn_id = None if newest is None else request.messages[newest].turn_id
    return turn_id if type(turn_id) is int and abs(turn_id) <= LARGEST else None


def is_newer(claim: TurnClaim, order: TurnOrder, other: TurnClaim, other_order: TurnOrder) -> bool:
    """Whether a turn supersedes another; ``order`` and ``other_order`` say when each entered.

    Of two that entered at about the same time, the one that goes on where the other's words end is the newer.
    """
    if not supersedes(claim, other):
        return False
    if abs(order[0] - other_order[0]) < _JITTER:
        if _goes_on(claim, other):
            return True
        if _goes_on(other, claim):
            return False
    return order > other_order


def _goes_on(claim: TurnClaim, other: TurnClaim) -> bool:
    """Whether the newest words of a turn begin with the other's, and go on."""
    texts = []
    for messages in (claim.messages, other.messages):
        newest = newest_user(messages)
        texts.append("" if newest is None else messages[newest].text)
    return max(map(len, texts)) <= _LONGEST_UTTERANCE and continues(*texts)


def supersedes(newer: TurnClaim, older: TurnClaim) -> bool:
    """Whether ``newer`` asks for the same turn as ``older``, with other messages.

    The platform's turn ids decide where both have one; else the user's newest words, which continue the
    older's after an equal history.
    """
    if newer.short != older.short:
        newer, older = (each if each.short else each.condensed() for each in (newer, older))
    if newer.turn_id is not None and older.turn_id is not None:
        return newer.turn_id == older.turn_id and newer.messages != older.messages
    new, old = newest_user(newer.messages), newest_user(older.messages)
    if new is None or old is None:
        return False
    one, other = newer.messages[new], older.messages[old]
    if one.name != other.name or one.user != other.user:
        return False
    text, start = one.text, other.text
    if len(text) > _LONGEST_UTTERANCE or len(start) > _LONGEST_UTTERANCE or not continues(text, start):
        return False
    history, earlier = _speech(newer.messages[:new]), _speech(older.messages[:old])
    return len(history) == len(earlier) and all(map(_is_same_line, history, earlier))


def _speech(messages: Sequence[Message]) -> list[Message]:
    """The messages without instructions, which may tell the time and so differ from request to request."""
    return [message for message in messages if message.role not in SYSTEM]


def _is_same_line(one: Message, other: Message) -> bool:
    if one.role != other.role or (one.tool_calls or None) != (other.tool_calls or None):
        return False
    text, words = one.text, other.text
    return text == words or (max(len(text), len(words)) <= _LONGEST_UTTERANCE and same_words(text, words))


def _digest(value: object) -> str:
    try:
        data = msgspec.msgpack.encode(value, order="deterministic")
    except OverflowError:  # clients may send numbers of any length
        data = repr(value).encode()
    return hashlib.blake2b(data, digest_size=16).hexdigest()
