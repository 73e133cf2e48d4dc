"""An archive in which the names of sessions and users are encrypted."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar, cast

from proxy.memory.archive.sql import (
    Database,
    Rows,
    Secrets,
    Steps,
    Transaction,
    ensure_secrets,
    fetch,
    fetch_value,
    readable_secrets,
    stored_secrets,
)
from proxy.memory.errors import StoreError
from proxy.memory.stores.codec import NAME_MARK, Codec, Names
from proxy.memory.stores.sql import Arguments, BoundStatement, Each, Statement, id_bytes, id_text
from proxy.memory.tasks import cancel_and_wait, retrieve_exception

T = TypeVar("T")

PURPOSE: Final = "names"
"""The purpose of the secrets with which names are encrypted."""
_MARK: Final = NAME_MARK.encode()
_LAST: Final = b"\xff"
"""Sorts after all names, which are UTF-8."""
_AT_ONCE: Final = 100
_CHANGED: Final = object()
_log = logging.getLogger("turnkeeper")


class _Loaded(NamedTuple):
    """The cipher of names, and its secrets."""

    names: Names
    secrets: Secrets


class NamedDatabase:
    """Encrypts names in the statements of a database, and decrypts them in its rows.

    The secret is stored in the archive, encrypted with the newest key, so that names stay readable after a
    change of keys. Names that are plain, or under another secret, are encrypted before anything else. If a
    file is replaced under a running server, the next write loads its secret.
    """

    def __init__(self, database: Database, codec: Codec) -> None:
        self._database = database
        self._codec = codec
        self._loaded: _Loaded | None = None
        self._loading: asyncio.Task[_Loaded] | None = None
        self._scrubbing: asyncio.Task[None] | None = None

    async def write(self, work: Transaction[T]) -> T:
        """Runs the steps in one transaction."""
        while True:
            loaded = self._loaded or await self._load()
            outcome: Any = await self._database.write(partial(self._checked, loaded, work))
            if outcome is not _CHANGED:
                return cast("T", outcome)
            self._loaded = None

    async def read(self, work: Transaction[T]) -> T:
        """Runs steps that change nothing."""
        loaded = self._loaded or await self._load()
        return await self._database.read(partial(_translated, loaded.names, work))

    async def read_inline(self, work: Transaction[T]) -> T:
        """Runs steps that read a few rows by their keys, during a call."""
        loaded = self._loaded or await self._load()
        return await self._database.read_inline(partial(_translated, loaded.names, work))

    def rows_nowait(self, statement: Statement, arguments: Arguments) -> Rows | None:
        """Returns a query's rows without waiting; ``None`` if that is impossible."""
        if self._loaded is None:
            return None
        names = self._loaded.names
        rows = self._database.rows_nowait(statement, _arguments(names, arguments))
        return rows and _rows(names, rows)

    async def scrub(self) -> None:
        """Removes deleted rows from the database's files."""
        await self._database.scrub()

    async def ping(self) -> None:
        """Returns if a write would succeed now; else raises StoreError."""
        await self._database.ping()

    async def aclose(self) -> None:
        """Cancels loading and scrubbing, and closes the database."""
        for task in (self._loading, self._scrubbing):
            await cancel_and_wait(task)
        await self._database.aclose()

    async def _load(self) -> _Loaded:
        """Reads the secrets and encrypts plain names; this continues when the caller is cancelled."""
        if self._loading is None or self._loading.done():
            self._loading = asyncio.get_running_loop().create_task(self._load_and_encrypt())
            self._loading.add_done_callback(retrieve_exception)
        return await asyncio.shield(self._loading)

    async def _load_and_encrypt(self) -> _Loaded:
        loaded = await self._database.write(partial(_load, self._codec))
        count = 0
        for column in _COLUMNS:
            for tenant in await self._database.read(partial(_tenants, column)):
                mark = loaded.names.mark.encode()
                for first, last in ((b"", mark), (mark + _LAST, _LAST)):  # names without a mark
                    after: bytes | None = first
                    while after is not None:
                        work = partial(_encrypt_some, loaded.names, column, tenant, after, last)
                        after, changed = await self._database.write(work)
                        count += changed
        if count:
            _log.info("%d names of sessions and users in the archive are encrypted from now on", count)
            self._scrubbing = asyncio.get_running_loop().create_task(self._scrub())
        self._loaded = loaded
        return loaded

    async def _scrub(self) -> None:
        try:
            await self._database.scrub()
        except StoreError as error:
            _log.warning("Old plain names could not be removed from the archive's files: %s", error)

    def _checked(self, loaded: _Loaded, work: Transaction[T]) -> Steps[Any]:
        """Runs the steps, unless the secrets have changed."""
        stored = yield from stored_secrets(PURPOSE)
        if stored != loaded.secrets.stored:
            if readable_secrets(self._codec, stored) != loaded.secrets.readable:
                return _CHANGED
            self._loaded = loaded._replace(secrets=loaded.secrets._replace(stored=stored))
        return (yield from _translated(loaded.names, work))


# --- translation of statements and rows


def _translated(names: Names, work: Transaction[T]) -> Steps[T]:
    """Runs steps with encrypted names in their statements, and decrypted names in their rows."""
    steps: Steps[T] = work()
    reply: Any = None
    while True:
        try:
            step = steps.send(reply)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        reply = [
            [_rows(names, rows) for rows in answer] if isinstance(one, Each) else _rows(names, answer)
            for one, answer in zip(step, (yield tuple(_encrypted(names, one) for one in step)), strict=True)
        ]


def _encrypted(names: Names, one: BoundStatement | Each) -> BoundStatement | Each:
    if isinstance(one, Each):
        return one._replace(rows=[_arguments(names, row) for row in one.rows])
    return one._replace(arguments=_arguments(names, one.arguments))


def _arguments(names: Names, arguments: Arguments) -> Arguments:
    """Encrypts the names in arguments; ``after`` may also be a number."""
    changed = {
        column: _form(names, cast("bytes", arguments["tenant"]), name)
        for column in ("session", "person", "after")
        if isinstance(name := arguments.get(column), bytes)
    }
    if "sessions" in arguments:
        both = zip(
            cast("Sequence[bytes]", arguments["tenants"]),
            cast("Sequence[bytes]", arguments["sessions"]),
            strict=True,
        )
        changed["sessions"] = [_form(names, *each) for each in both]  # type: ignore[assignment]
    return {**arguments, **changed} if changed else arguments


def _form(names: Names, tenant: bytes, name: bytes) -> bytes:
    return id_bytes(names.encrypted(id_text(tenant), id_text(name)))


def _rows(names: Names, rows: Rows) -> Rows:
    return [tuple(_cell(names, cell) for cell in row) if any(map(_is_marked, row)) else row for row in rows]


def _is_marked(cell: object) -> bool:
    return isinstance(cell, bytes) and cell.startswith(_MARK)


def _cell(names: Names, cell: Any) -> Any:
    """Decrypts a name; other bytes stay, even if they begin like one."""
    if not _is_marked(cell):
        return cell
    try:
        return id_bytes(names.decrypted(cell.decode("ascii")))
    except UnicodeDecodeError:
        return cell


# --- encryption of stored names


class _Column(NamedTuple):
    """A column of names: statements that find a tenant's names and replace them."""

    tenants: Statement
    some: Statement
    update: Statement
    other: Statement


def _column(table: str, column: str, same: str) -> _Column:
    return _Column(
        Statement(f"SELECT tenant FROM {table} WHERE tenant > :after ORDER BY tenant LIMIT 1"),
        Statement(
            f"SELECT id, {column} FROM {table} WHERE tenant = :tenant AND {column} > :after"
            f" AND {column} < :last ORDER BY {column} LIMIT {_AT_ONCE}"
        ),
        Statement(
            f"UPDATE {table} SET {column} = :form WHERE id = :id AND {column} = :stored AND NOT EXISTS"
            f" (SELECT 1 FROM {table} o WHERE o.tenant = :tenant AND o.{column} = :form{same}) RETURNING id"
        ),
        Statement(f"SELECT id FROM {table} WHERE tenant = :tenant AND {column} = :form"),
    )


_USERS: Final = _column("turnkeeper_people", "person", "")
_SESSIONS: Final = _column("turnkeeper_talks", "session", " AND o.created = turnkeeper_talks.created")
_COLUMNS: Final = (_USERS, _SESSIONS)
# Merges two rows of one user under two secrets into the one that is found.
_MERGE: Final = (
    Statement("UPDATE turnkeeper_turns SET owner = :into WHERE owner = :id"),
    Statement("UPDATE turnkeeper_turns SET speaker = :into WHERE speaker = :id"),
    Statement("UPDATE turnkeeper_passages SET owner = :into WHERE owner = :id"),
    Statement("UPDATE turnkeeper_vectors SET owner = :into WHERE owner = :id"),
    Statement(
        "UPDATE turnkeeper_facts SET owner = :into WHERE owner = :id AND NOT EXISTS (SELECT 1"
        " FROM turnkeeper_facts o WHERE o.owner = :into AND o.name = turnkeeper_facts.name)"
    ),
    Statement("DELETE FROM turnkeeper_facts WHERE owner = :id"),
    Statement("DELETE FROM turnkeeper_people WHERE id = :id"),
)


def _load(codec: Codec) -> Steps[_Loaded]:
    secrets = yield from ensure_secrets(codec, PURPOSE)
    # Only a codec with keys has such a database.
    return _Loaded(cast("Names", codec.names(secrets.readable)), secrets)


def _tenants(column: _Column) -> Steps[list[bytes]]:
    """Reads the tenants with any rows."""
    tenants = [b""]
    while (tenant := (yield from fetch_value(column.tenants, {"after": tenants[-1]}))) is not None:
        tenants.append(bytes(tenant))
    return tenants


def _encrypt_some(
    names: Names, column: _Column, tenant: bytes, after: bytes, last: bytes
) -> Steps[tuple[bytes | None, int]]:
    """Encrypts some names of a tenant; returns the last one, ``None`` at the end, and how many changed."""
    rows = yield from fetch(column.some, {"tenant": tenant, "after": after, "last": last})
    count = 0
    for id_, stored in rows:
        form = _form(names, tenant, id_bytes(names.decrypted(id_text(stored))))
        if form == stored:  # under a key that is lost
            continue
        own: Mapping[str, object] = {"id": id_, "tenant": tenant, "form": form}
        changed = yield from fetch(column.update, {**own, "stored": stored})
        count += len(changed)
        if changed or column is not _USERS:
            continue
        into = yield from fetch_value(column.other, {"tenant": tenant, "form": form})
        if into not in {None, id_}:  # else another process has just encrypted it
            for statement in _MERGE:
                yield from fetch(statement, {"id": id_, "into": into})
            count += 1
    return bytes(rows[-1][1]) if len(rows) == _AT_ONCE else None, count
