"""Work on a database, told step by step: each yields what is asked and gets the rows, on either driver."""

from collections.abc import Generator
from typing import Any, NamedTuple, TypeVar

from proxy.memory.archive.statements import NEW_PERSON, PERSON_ID
from proxy.memory.owner import Owner
from proxy.memory.sql.statement import Arguments, Statement, stored

T = TypeVar("T")
Rows = list[tuple[Any, ...]]


class Ask(NamedTuple):
    """One statement with what is bound to its names."""

    statement: Statement
    arguments: Arguments


Steps = Generator[Ask, Rows, T]


def asked(statement: Statement, arguments: Arguments) -> Steps[Rows]:
    """The rows that one statement gives."""
    rows = yield Ask(statement, arguments)
    return rows


def first(statement: Statement, arguments: Arguments) -> Steps[Any]:
    """The first column of the first row; ``None`` where there is none."""
    rows = yield Ask(statement, arguments)
    return rows[0][0] if rows else None


def who(whose: Owner) -> dict[str, object]:
    """The arguments that say which person is meant."""
    return {"tenant": stored(whose.tenant), "person": stored(whose.person)}


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
