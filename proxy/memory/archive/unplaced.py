"""Turns in the index of which it is still to be found out whose they are, talk by talk."""

from collections.abc import Iterator, Sequence
from typing import Any

from proxy.memory.archive.shelf import Line, Shelf
from proxy.memory.archive.statements import NO_UNPLACED, OF_TALK, TURN, UNPLACED
from proxy.memory.archive.steps import Rows, Steps, asked, first, owner_for
from proxy.memory.archive.turns import indexed
from proxy.memory.session import UNREADABLE, Entry
from proxy.memory.speakers import guests, supposed
from proxy.memory.stores.sql import id_text
from proxy.memory.stores.store import Key, Owner

Read = tuple[Sequence[Any], Entry]


def place(shelf: Shelf) -> Steps[int]:
    """Puts the turns of one talk in the index of those whose they are; how many, 0 where all are there.

    What cannot be read is nobody's from then on, nor is what was answered to no words that are there.
    """
    talk = yield from first(UNPLACED, {})
    if talk is None:
        return 0
    rows = yield from asked(OF_TALK, {"talk": talk})
    yield from asked(NO_UNPLACED, {"talk": talk})
    read = list(_read(shelf, rows))
    entries = [entry for _, entry in read]
    session = supposed(id_text(rows[0][2]) if rows else "", entries)
    for (row, entry), guest in zip(read, guests(session, entries), strict=True):
        yield from _placed(shelf, talk, row, entry, guest)
    return max(1, len(rows))


def _read(shelf: Shelf, rows: Rows) -> Iterator[Read]:
    for row in rows:
        try:
            yield row, shelf.opened(Key(id_text(row[0]), id_text(row[1])), row[7], Entry)
        except UNREADABLE:
            continue


def _placed(shelf: Shelf, talk: int, row: Sequence[Any], entry: Entry, guest: str | None) -> Steps[None]:
    tenant, _, person, owner, item, ordinal, at, _ = row
    whose = Owner(id_text(tenant), id_text(person) if guest is None else guest)
    if guest is not None:
        owner = (yield from owner_for(whose)) if guest else None
    yield from indexed(shelf, whose, owner, entry, Line(TURN, item, at, talk, ordinal))
