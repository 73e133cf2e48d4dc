"""The turns that are being answered, and which of them a newer request supersedes."""

import asyncio
import hashlib
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

import msgspec

from filters.message import LARGEST, SYSTEM, Message, newest_user
from proxy.errors import Superseded
from proxy.http.reply import Reply
from proxy.memory.stores.store import Key
from proxy.memory.wording import continues, same_words
from proxy.turn.request import ClientRequest

# Nobody speaks as long as this in one breath: what is longer is no transcript, and takes long to compare.
_LONGEST_SPOKEN = 20_000
Slot = tuple[Key, str]
"""A session, and the pipeline that it talks through."""


class TurnClaim(msgspec.Struct, frozen=True, gc=False):
    """What a call shows of the turn that it asks for; where it is ``short``, digests stand for most of it."""

    number: int | None
    messages: Sequence[Message]
    short: bool = False

    @classmethod
    def of(cls, call: ClientRequest) -> Self:
        """What a call shows."""
        return cls(turn_number(call), call.messages)

    def condensed(self) -> Self:
        """The newest words, and a digest of the rest: few bytes.

        It compares as the whole does, but that an earlier line which the engine spells otherwise is no longer
        equal: comparing word by word would keep all callers waiting for milliseconds.
        """
        newest = newest_user(self.messages)
        talk = _spoken(self.messages[: newest or 0])
        shown = _digest([(each.role, each.tool_calls or None, each.text) for each in talk])
        before = Message(role="assistant", content=shown, name=_digest(self.messages))
        words = [] if newest is None else [_opening(self.messages[newest])]
        return type(self)(self.number, [before, *words], short=True)


def supersedes(newer: TurnClaim, older: TurnClaim) -> bool:
    """Whether ``newer`` asks for an answer to the turn of ``older``, and shows it otherwise than that did.

    Engines' turn numbers decide where both have one; else the newest words of the user do, which go on from
    the older's after an equal history.
    """
    older = older.condensed() if newer.short else older
    if newer.number is not None and older.number is not None:
        return newer.number == older.number and newer.messages != older.messages
    return _goes_on(newer.messages, older.messages)


def turn_number(call: ClientRequest) -> int | None:
    """The engine's number of the turn that a call asks for, if it has one."""
    given = call.field("turn_id")
    if type(given) is not int or abs(given) > LARGEST:
        newest = newest_user(call.messages)
        given = None if newest is None else call.messages[newest].turn_id
    return given if type(given) is int and abs(given) <= LARGEST else None


def _goes_on(newer: Sequence[Message], older: Sequence[Message]) -> bool:
    new, old = newest_user(newer), newest_user(older)
    if new is None or old is None or not _one_speaker(newer[new], older[old]):
        return False
    text, start = newer[new].text, older[old].text
    if len(text) > _LONGEST_SPOKEN or len(start) > _LONGEST_SPOKEN:
        return False
    return continues(text, start) and _equal(_spoken(newer[:new]), _spoken(older[:old]))


def _one_speaker(one: Message, other: Message) -> bool:
    return one.name == other.name and one.user == other.user


def _spoken(messages: Sequence[Message]) -> list[Message]:
    """The talk without instructions, which may tell the time and so differ from call to call."""
    return [message for message in messages if message.role not in SYSTEM]


def _equal(talk: Sequence[Message], other: Sequence[Message]) -> bool:
    return len(talk) == len(other) and all(map(_alike, talk, other))


def _alike(one: Message, other: Message) -> bool:
    if one.role != other.role or (one.tool_calls or None) != (other.tool_calls or None):
        return False
    text, words = one.text, other.text
    return text == words or (max(len(text), len(words)) <= _LONGEST_SPOKEN and same_words(text, words))


def _opening(message: Message) -> Message:
    """The newest words, as far as they are looked at, and who says them."""
    text = message.text[: _LONGEST_SPOKEN + 1]
    return Message(role=message.role, content=text, name=message.name, metadata={"user": message.user})


def _digest(shown: object) -> str:
    try:
        written = msgspec.msgpack.encode(shown, order="deterministic")
    except OverflowError:  # clients may send numbers of any length
        written = repr(shown).encode()
    return hashlib.blake2b(written, digest_size=16).hexdigest()


class ActiveTurns:
    """One process's turns by session and pipeline; what has no session is never among them.

    ``tell``, once there are other processes, is told of each turn that enters, a moment later.
    """

    def __init__(self) -> None:
        self.publish: Callable[[Slot, float, TurnClaim], None] | None = None
        self._flights: dict[Slot, list[ActiveTurn]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._flights.values()))

    def begin(self, seat: Slot | None, call: ClientRequest, reply: Reply) -> "ActiveTurn":
        """A turn of the current task, in flight while it is entered."""
        return ActiveTurn(self, seat, call, reply)

    def enter(self, seat: Slot, flight: "ActiveTurn") -> None:
        """Takes a turn in; those that it supersedes are cancelled."""
        others = self._flights.setdefault(seat, [])
        for other in others:
            if other.open and supersedes(flight.claim, other.claim):
                other.cancel()
        others.append(flight)
        if self.publish is not None:
            asyncio.get_running_loop().call_soon(self.publish, seat, flight.entered_at, flight.claim)

    def cancel_superseded(self, seat: Slot, at: float, asked: Callable[[], TurnClaim]) -> None:
        """A turn has entered elsewhere; what it supersedes of those that entered here before is cancelled."""
        earlier = [flight for flight in self._flights.get(seat, ()) if flight.open and flight.entered_at < at]
        newer = asked() if earlier else None
        for flight in earlier:
            if newer is not None and supersedes(newer, flight.claim):
                flight.cancel()

    def leave(self, seat: Slot, flight: "ActiveTurn") -> None:
        """Lets a turn go."""
        left = self._flights[seat]
        left.remove(flight)
        if not left:
            del self._flights[seat]


class ActiveTurn:
    """One turn, from when it was read until it is answered. Leaving it raises Superseded where it was."""

    def __init__(self, among: ActiveTurns, seat: Slot | None, call: ClientRequest, reply: Reply) -> None:
        self.claim = TurnClaim.of(call)
        self.entered_at = time.monotonic()
        self._among = among
        self._seat = seat
        self._reply = reply
        self._superseded = False

    def __enter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101
        self._task = task
        self._cancelled_before = task.cancelling()
        if self._seat is not None:
            self._among.enter(self._seat, self)

    def __exit__(
        self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None
    ) -> None:
        if self._seat is not None:
            self._among.leave(self._seat, self)
        if self._superseded and self._alone() and kind is asyncio.CancelledError:
            raise Superseded("A newer request for the same turn has taken this one's place.") from None

    @property
    def open(self) -> bool:
        """Whether it may still be cancelled; not so once its last bytes are on their way."""
        return not (self._superseded or self._reply.ending)

    def cancel(self) -> None:
        """Ends the turn in favour of a newer one."""
        self._superseded = True
        self._task.cancel()

    def _alone(self) -> bool:
        """Takes our own cancellation back; whether no other is left, of a hang-up or of the server's end."""
        return self._task.uncancel() <= self._cancelled_before
