"""What is known when a question comes: three kinds of memory, asked at once under one deadline."""

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Sequence
from typing import Any, TypeVar

import msgspec

from filters.line import one_line
from filters.message import Message
from proxy.memory.guests import guests
from proxy.memory.recall import recall
from proxy.memory.session import Session, message_of
from proxy.memory.store import Key, Store

T = TypeVar("T")

_LONGEST = 1_000_000
_LONGEST_NAME = 64
_log = logging.getLogger("turnkeeper")


class Assembled(msgspec.Struct, frozen=True, kw_only=True):
    """``stm`` is the recent talk, ``ltm`` what is known of the user, ``chunks`` what was found, best first.

    ``late`` names those of the three that failed or did not come in time, and are empty.
    """

    stm: Sequence[str] = ()
    ltm: Sequence[str] = ()
    chunks: Sequence[str] = ()
    late: tuple[str, ...] = ()

    def __str__(self) -> str:
        """All of it as one text, a paragraph for each kind."""
        parts = ("\n".join(lines) for lines in (self.ltm, self.chunks, self.stm) if lines)
        return "\n\n".join(parts)


async def assemble(
    *,
    stm: Awaitable[Sequence[str]],
    ltm: Awaitable[Sequence[str]],
    search: Awaitable[Sequence[str]],
    deadline: float,
) -> Assembled:
    """Asks all three at once; what has not come after ``deadline`` seconds is left out, and stopped."""
    tasks = {
        "stm": asyncio.ensure_future(stm),
        "ltm": asyncio.ensure_future(ltm),
        "search": asyncio.ensure_future(search),
    }
    try:
        await asyncio.wait(tasks.values(), timeout=deadline)
    finally:
        for task in tasks.values():
            task.cancel()
    came = {name: found for name, task in tasks.items() if (found := _outcome(name, task)) is not None}
    return Assembled(
        stm=came.get("stm", ()),
        ltm=came.get("ltm", ()),
        chunks=came.get("search", ()),
        late=tuple(name for name in tasks if name not in came),
    )


async def talk(store: Store, key: Key) -> list[str]:
    """The recent talk of a session as lines; none where nothing is held. Raises StoreError."""
    return lines(await recall(store, key))


def lines(session: Session, *, naming: bool = False) -> list[str]:
    """The recent talk, a line each: ``user: Hello``; ``naming`` others than its person: ``user eve: Hello``.

    Tool results are no talk, nor is what a program put in the user's place.
    """
    others = guests(session, session.entries) if naming else itertools.repeat(None)
    said = (
        (message_of(entry), other if entry.role == "user" else None)
        for entry, other in zip(session.entries, others, strict=naming)
        if not entry.put_in
    )
    return [f"{_by(m, other)}: {one_line(m.text, _LONGEST)}" for m, other in said if _is_talk(m)]


def _is_talk(message: Message) -> bool:
    return message.role != "tool" and bool(message.text.strip())


def _by(message: Message, other: str | None) -> str:
    return f"{message.role} {one_line(other, _LONGEST_NAME)}" if other else message.role


def _outcome(name: str, task: asyncio.Future[Any]) -> Any | None:
    if not task.done() or task.cancelled():
        return None
    fault = task.exception()
    if fault is None:
        return tuple(task.result())
    _log.warning("A memory could not be read (%s): %s", name, type(fault).__name__)
    return None
