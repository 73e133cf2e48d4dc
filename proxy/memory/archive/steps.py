"""Work on a database, told step by step: each yields what is asked and gets the rows, on either driver."""

from collections.abc import Generator, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple, TypeVar

from proxy.memory.archive.statements import NEW_PERSON, PERSON_ID
from proxy.memory.stores.sql import Arguments, Statement, id_bytes
from proxy.memory.stores.store import Owner

T = TypeVar("T")
Rows = list[tuple[Any, ...]]


class Ask(NamedTuple):
    """One statement with what is bound to its names."""

    statement: Statement
    arguments: Arguments


class Beside(NamedTuple):
    """Statements of which none waits for another's rows."""

    asks: tuple[Ask, ...]


Steps = Generator[Ask | Beside, Any, T]
"""An ``Ask`` gets ``Rows``, and what is asked ``Beside`` one another a list of them, in that order."""


def asked(statement: Statement, arguments: Arguments) -> Steps[Rows]:
    """The rows that one statement gives."""
    rows: Rows = yield Ask(statement, arguments)
    return rows


def first(statement: Statement, arguments: Arguments) -> Steps[Any]:
    """The first column of the first row; ``None`` where there is none."""
    rows = yield Ask(statement, arguments)
    return rows[0][0] if rows else None


def together(*works: Steps[Any]) -> Steps[list[Any]]:
    """What comes of each, in their order; what they ask at the same time is asked in one round trip."""
    results = dict[int, Any]()
    waiting = _gone_on(works, dict.fromkeys(range(len(works))), results)
    while waiting:
        asks = tuple(ask for asked_now in waiting.values() for ask in _asks(asked_now))
        replies = [(yield asks[0])] if len(asks) == 1 else (yield Beside(asks))
        left = iter(replies)
        heard = {work: _reply(asked_now, left) for work, asked_now in waiting.items()}
        waiting = _gone_on(works, heard, results)
    return [results[work] for work in range(len(works))]


def _gone_on(
    works: Sequence[Steps[Any]], heard: Mapping[int, Any], results: dict[int, Any]
) -> dict[int, Ask | Beside]:
    """What those ask next who have heard a reply; those who ask no more have a result."""
    waiting: dict[int, Ask | Beside] = {}
    for work, reply in heard.items():
        try:
            waiting[work] = works[work].send(reply)
        except StopIteration as end:
            results[work] = end.value
    return waiting


def _asks(asked_now: Ask | Beside) -> tuple[Ask, ...]:
    return (asked_now,) if isinstance(asked_now, Ask) else asked_now.asks


def _reply(asked_now: Ask | Beside, left: Iterator[Rows]) -> Rows | list[Rows]:
    return next(left) if isinstance(asked_now, Ask) else [*islice(left, len(asked_now.asks))]


def who(whose: Owner) -> dict[str, object]:
    """The arguments that say which person is meant."""
    return {"tenant": id_bytes(whose.tenant), "person": id_bytes(whose.person)}


def owner_of(whose: Owner) -> Steps[int | None]:
    """The number of a person; ``None`` for one of whom nothing was ever kept."""
    found: int | None = yield from first(PERSON_ID, who(whose))
    return found


def owner_for(whose: Owner) -> Steps[int]:
    """The number of a person, who is there from now on."""
    found = yield from owner_of(whose)
    if found is None:
        found = yield from first(NEW_PERSON, who(whose))
    return int(found)
