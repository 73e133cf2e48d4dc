"""Sessions over a driver: encoded, cached, measured, and behind a circuit breaker."""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import Final, NamedTuple, TypeVar
from weakref import WeakValueDictionary

import msgspec

from proxy.circuit import Backoff, Outage
from proxy.memory import extensible
from proxy.memory.errors import StoreError, Unreadable, WriteConflict
from proxy.memory.redaction import NO_REDACTION, Redaction
from proxy.memory.session import (
    START,
    EncodedEntries,
    Entry,
    Session,
    TurnRef,
    decode,
    encode_further,
)
from proxy.memory.stores.codec import Codec
from proxy.memory.stores.names import with_names
from proxy.memory.stores.store import (
    KEEP_EXPIRY,
    NEVER_DUE,
    TOMBSTONE_SECONDS,
    BlobWrite,
    DueSession,
    Key,
    ListedSession,
    Store,
    StoredBlob,
    draw_version,
)
from proxy.memory.tasks import cancel_and_wait, in_thread_if_long
from proxy.newest import Newest

T = TypeVar("T")

Meter = Callable[[str, str, float], None]
"""Called after each operation with its name, its outcome (done, lost or failed), and its seconds."""
DueAt = Callable[[Session], float]
"""When one kind of background work on a session is due, in seconds since 1970."""

_NEVER: Final = object()
_PAGE: Final = 1000
_FIRST_PAGE: Final = 100
# As many calls as one process answers at once.
_CACHE_SIZE: Final = 256
_CACHE_SECONDS: Final = 60.0
_MAX_WRITTEN: Final = 10_000
# By as many writes a replica may be behind that takes its master's place.
_MOST_REPLACED: Final = 8
_BACKOFF: Final = Backoff(0.1, 1.0)
_REPORT_AFTER: Final = 5.0
_ATTEMPTS: Final = 10


class StoredSession(NamedTuple):
    """A session, and the version that a write must name to replace it; 0 where there is none yet.

    ``latest_line_bytes`` are the lines that its latest request showed, encoded, where this process has
    recorded that last.
    """

    session: Session
    version: int
    latest_line_bytes: bytes = b""


NOT_STORED: Final = StoredSession(Session(), 0)


class SessionWrite(msgspec.Struct, frozen=True, gc=False):
    """A session to be written over ``version``, and the entries for its cold part.

    ``latest_line_bytes`` are the lines that its latest request showed, encoded, where that was just recorded.
    ``instead_of`` are the versions of earlier heads, which calls may have read and which were not written.
    The other fields are those of ``BlobWrite``.
    """

    session: Session
    version: int
    ttl: float
    cold: Sequence[Entry] = ()
    at: float = math.inf
    background: bool = False
    new_version: int = 0
    latest_line_bytes: bytes = b""
    instead_of: tuple[int, ...] = ()


class _Cached(msgspec.Struct, frozen=True, gc=False):
    stored: StoredSession
    at: float
    due: float
    encoded_entries: EncodedEntries


class _LastWrite(msgspec.Struct, frozen=True, gc=False):
    """The last write of this process to a session, and the versions that it replaced.

    A read that returns one of these is out of date, and so is one that finds no session before ``until``, in
    loop time. ``is_lost`` is whether the last read was.
    """

    replaces: tuple[int, ...]
    until: float
    is_lost: bool = False


_REMOVED: Final = _LastWrite((), -math.inf)
"""Stands for a session that was deleted, or replaced as a whole: nothing continues its versions."""


def first_due(due: Sequence[DueAt], session: Session) -> float:
    """The earliest time at which one of several kinds of background work is due."""
    first = NEVER_DUE
    for due_at in due:
        first = min(first, due_at(session))
    return first


def no_meter(_operation: str, _outcome: str, _seconds: float) -> None:
    """A meter that counts nothing."""


class SessionStore:
    """Sessions over a driver, which stores bytes. It is itself a store of bytes, for episodes.

    Sessions that were written last are cached for a minute, and a read of the same version is not decoded. A
    read of an older version than was written, as after a failover to a replica that lags, returns the cached
    session. ``heads`` are sessions whose newest turns are not written yet, which calls read. ``writing`` are
    the writes of turns under way, the oldest first, with their start by the monotonic clock. ``meter`` counts
    the operations: ``lost`` where another writer was faster, and ``failed`` with StoreError.

    Calls go through a ``StoreBreaker``, which never opens without a ``deadline``; while it is open,
    background work uses ``background_driver``. ``rounds`` is how many rounds of the event loop pass until a
    read is sent: 0 where it is sent at once, ``None`` where the driver answers without waiting. ``due`` says
    when each kind of background work on a session is due.
    """

    def __init__(  # noqa: PLR0913 - a driver, and what stands before it
        self,
        driver: Store,
        codec: Codec,
        *,
        redaction: Redaction = NO_REDACTION,
        deadline: float = math.inf,
        background_driver: Store | None = None,
        meter: Meter = no_meter,
        rounds: int | None = None,
        cache_seconds: float = _CACHE_SECONDS,
    ) -> None:
        driver, background_driver = with_names(codec, driver, background_driver)
        self.breaker = StoreBreaker(driver, background_driver, deadline=deadline)
        self.rounds = rounds
        self.deadline = deadline
        self.heads: dict[Key, StoredSession] = {}
        self.due: Sequence[DueAt] = ()
        self._codec = codec
        self._redaction = redaction
        self._meter = meter
        self._cache = Newest[Key, _Cached](_CACHE_SIZE)
        self._cache_seconds = cache_seconds
        self._last_writes = Newest[Key, _LastWrite](_MAX_WRITTEN)
        self._changes: WeakValueDictionary[Key, asyncio.Lock] = WeakValueDictionary()
        self._timer: asyncio.TimerHandle | None = None
        self.writing: dict[Key, float] = {}

    # --- sessions

    def cached(self, key: Key) -> StoredSession | None:
        """The session as this process wrote it last; ``None`` where it has a head that is not written yet."""
        if key in self.heads:
            return None
        cached = self._cache.get(key)
        return None if cached is None else cached.stored

    def written_instead_of(self, key: Key, version: int) -> StoredSession | None:
        """The session as this process wrote it last, if that write replaced this version; else ``None``.

        ``NOT_STORED`` where this process deleted the session, or replaced it as a whole.
        """
        written, cached = self._last_writes.get(key), self._cache.get(key)
        if written is None or not version:
            return None
        if written is _REMOVED:
            return NOT_STORED
        return cached.stored if cached and version in written.replaces else None

    def written_due(self, key: Key) -> float:
        """When background work on the session as last written is due; now, if it is no longer cached."""
        cached = self._cache.get(key)
        return 0.0 if cached is None else cached.due

    def discard(self, key: Key) -> None:
        """Drops a session that was deleted or replaced as a whole from the cache."""
        self._forget(key)
        self._last_writes.put(key, _REMOVED)

    async def load(self, key: Key, *, background: bool = False) -> StoredSession | None:
        """Reads the session without its cold part; returns the cached value itself if it is still current.

        A call gets the head, if there is one. Raises StoreError.
        """
        if not background and (head := self.heads.get(key)) is not None:
            return head
        written = self._last_writes.get(key)
        stored = await self._ask(
            "read", lambda driver: driver.read(key, background=background), background=background
        )
        cached = self._cache[key].stored if key in self._cache else None
        if stored is not None and cached is not None and cached.version == stored.version:
            return cached
        result = None
        if stored is not None:
            session = decode(self._codec.decode(key, stored.blob))
            latest_line_bytes = b""
            # Background work leaves what was said as it is.
            if (
                cached is not None
                and cached.session.latest_request == session.latest_request
                and cached.session.entries == session.entries
            ):
                latest_line_bytes = cached.latest_line_bytes
                session = msgspec.structs.replace(session, entries=cached.session.entries)
            result = StoredSession(session, stored.version, latest_line_bytes)
        return result if written is None else await self._with_last_write(key, result, written)

    async def session(self, key: Key) -> Session | None:
        """Reads the session without its cold part, in the background; raises what ``load`` raises."""
        stored = await self.load(key, background=True)
        return stored.session if stored else None

    def has_lost_write(self, key: Key) -> bool:
        """Whether the last read lacked a write of this process that is no longer cached either."""
        written = self._last_writes.get(key)
        return written is not None and written.is_lost

    async def save(self, key: Key, put: SessionWrite) -> bool:
        """Replaces the session and appends to its cold part, as ``write`` does."""
        session, encoded, encoded_entries = await in_thread_if_long(
            partial(self._encoded, key, put), len(put.session.entries) + len(put.cold)
        )
        loop = asyncio.get_running_loop()
        former = self._last_writes.get(key, _REMOVED)
        until = former.until if put.ttl == KEEP_EXPIRY else loop.time() + min(put.ttl, TOMBSTONE_SECONDS)
        if not put.background:
            self.writing[key] = time.monotonic()
        try:
            written = await self._ask(
                "write",
                lambda driver: driver.write(key, encoded),
                background=encoded.background,
                fallback=True,
                lost=False,
            )
        finally:
            self.writing.pop(key, None)
        if written:
            stored = StoredSession(session, encoded.new_version, put.latest_line_bytes)
            self._cache.put(key, _Cached(stored, loop.time(), encoded.due, encoded_entries))
            if self._timer is None:
                self._timer = loop.call_later(self._cache_seconds, self._sweep)
            replaces = (put.version, *put.instead_of, *former.replaces)
            self._last_writes.put(key, _LastWrite(replaces[:_MOST_REPLACED], until))
        return written

    async def change(self, key: Key, change: Callable[[Session], Session]) -> Session | None:
        """Replaces a session by ``change(session)`` and returns that; ``None`` where none is stored.

        Nothing is written where ``change`` returns the session itself. Changes in this process wait for each
        other. Raises WriteConflict where other writers were faster ten times.
        """
        async with self._changes.setdefault(key, asyncio.Lock()):
            for _ in range(_ATTEMPTS):
                stored = await self.load(key, background=True)
                if stored is None:
                    return None
                changed = change(stored.session)
                put = SessionWrite(changed, stored.version, KEEP_EXPIRY, background=True)
                if changed is stored.session or await self.save(key, put):
                    return changed
        raise WriteConflict

    async def overwrite(self, key: Key, put: SessionWrite) -> bool:
        """Replaces the session and its cold part, as ``replace`` does."""
        self._forget(key)
        _, encoded, _ = await asyncio.to_thread(self._encoded, key, put)
        written = await self._ask("replace", lambda driver: driver.replace(key, encoded), lost=False)
        if written:
            self.discard(key)
        return written

    async def entries(self, key: Key, session: Session) -> tuple[Entry, ...]:
        """All entries; fewer where the session is deleted meanwhile."""
        pages = [page async for page in self.pages(key, session)]
        return tuple(chain.from_iterable(pages))

    async def pages(
        self, key: Key, session: Session, *, since: TurnRef = START
    ) -> AsyncIterator[Sequence[Entry]]:
        """All entries from a turn on, and some before it, page by page; the last page is the hot part.

        The cold part, which grows as long as a call lasts, is read only as far as pages are asked for.
        """
        start, end = 0, session.cold_count
        if session.entries and session.entries[0].turn_ref <= since:
            start = end
        while since > START and end - start > _FIRST_PAGE:
            middle, is_behind = (start + end) // 2, False
            with suppress(Unreadable):  # what cannot be read any more is old
                entries = await self.cold_entries(key, start=middle, limit=1)
                is_behind = not entries or entries[0].turn_ref > since
            start, end = (start, middle) if is_behind else (middle, end)
        limit = _FIRST_PAGE
        while start < session.cold_count:
            page = await self.cold_entries(key, start=start, limit=min(limit, session.cold_count - start))
            if not page:
                break
            yield page
            start, limit = start + len(page), min(_PAGE, 2 * limit)
        yield session.entries

    async def cold_entries(self, key: Key, *, start: int = 0, limit: int = _PAGE) -> list[Entry]:
        """Entries of the cold part, from the one at index ``start`` on."""
        blobs = await self.cold(key, start=start, limit=limit)

        def work() -> list[Entry]:
            return [extensible.decode(blob, Entry) for blob in blobs]

        return await in_thread_if_long(work, len(blobs), sum(map(len, blobs)))

    # --- bytes

    async def read(self, key: Key, *, background: bool = False) -> StoredBlob | None:
        """Reads the hot part as bytes, decrypted by the codec."""
        stored = await self._ask(
            "read", lambda driver: driver.read(key, background=background), background=background
        )
        return stored and StoredBlob(self._codec.decode(key, stored.blob), stored.version)

    async def write(self, key: Key, put: BlobWrite) -> bool:
        """Writes both parts as bytes, encrypted by the codec."""
        self._last_writes.pop(key, None)  # what is written here lasts as long as it says
        put = await self._through_codec(key, put)
        return await self._ask(
            "write",
            lambda driver: driver.write(key, put),
            background=put.background,
            fallback=True,
            lost=False,
        )

    async def replace(self, key: Key, put: BlobWrite) -> bool:
        """Replaces both parts by bytes, encrypted by the codec."""
        self._forget(key)
        put = await self._through_codec(key, put)
        return await self._ask("replace", lambda driver: driver.replace(key, put), lost=False)

    async def cold(self, key: Key, *, start: int = 0, limit: int = _PAGE) -> list[bytes]:
        """The cold part, decoded in a thread."""
        blobs = await self._ask("cold", lambda driver: driver.cold(key, start=start, limit=limit))
        return await asyncio.to_thread(lambda: [*map(partial(self._codec.decode, key), blobs)])

    async def delete(self, key: Key) -> bool:
        """Removes the session from the store and from the cache."""
        self._forget(key)
        existed = await self._ask("delete", lambda driver: driver.delete(key))
        self.discard(key)
        return existed

    async def deleted(self, key: Key) -> float | None:
        """When the session was deleted last; asked by turns whose session seems to be gone."""
        return await self._ask("deleted", lambda driver: driver.deleted(key), background=False, fallback=True)

    async def list(self, tenant: str, *, after: str = "", limit: int = 100) -> list[ListedSession]:
        """A tenant's sessions; their sizes are those of the encoded bytes."""
        return await self._ask("list", lambda driver: driver.list(tenant, after=after, limit=limit))

    async def take_due(self, tenants: Sequence[str], *, limit: int, lease: float) -> Sequence[DueSession]:
        """Takes sessions whose background work is due."""
        return await self._ask("take_due", lambda driver: driver.take_due(tenants, limit=limit, lease=lease))

    async def settle(self, session: DueSession, due: float) -> DueSession | None:
        """Sets when a session that was taken is due again."""
        return await self._ask("settle", lambda driver: driver.settle(session, due))

    async def acquire(self, name: str, token: bytes, *, ttl: float, former: bytes = b"") -> bytes | None:
        """Takes or renews a lease; its token is stored as it is."""
        return await self._ask("acquire", lambda driver: driver.acquire(name, token, ttl=ttl, former=former))

    async def release(self, name: str, token: bytes) -> None:
        """Ends a lease."""
        await self._ask("release", lambda driver: driver.release(name, token))

    async def ping(self) -> None:
        """Returns once the store answers; raises StoreError where it does not in time."""
        await self._ask("ping", lambda driver: driver.ping(), background=False)

    async def aclose(self) -> None:
        """Closes the drivers and drops the cache."""
        if self._timer:
            self._timer.cancel()
        self._cache.clear()
        self.heads.clear()
        await self.breaker.aclose()

    async def _ask(
        self,
        operation: str,
        ask: Callable[[Store], Awaitable[T]],
        *,
        background: bool = True,
        fallback: bool = False,
        lost: object = _NEVER,
    ) -> T:
        """Runs and counts an operation; a failure that a call waited for is recorded with the breaker."""
        began, outcome = time.perf_counter(), "failed"
        breaker = self.breaker
        try:
            driver = await breaker.background() if background else breaker.driver(fallback=fallback)
            result = await ask(driver)
            outcome = "lost" if result is lost else "done"
        except StoreError:
            if not background:
                breaker.failed(time.perf_counter() - began)
            raise
        finally:
            self._meter(operation, outcome, time.perf_counter() - began)
        return result

    async def _through_codec(self, key: Key, put: BlobWrite) -> BlobWrite:
        encode = partial(self._codec.encode, key)

        def work() -> BlobWrite:
            return put._replace(blob=encode(put.blob), cold=[*map(encode, put.cold)])

        return await in_thread_if_long(work, len(put.cold), len(put.blob) + sum(map(len, put.cold)))

    def _encoded(self, key: Key, put: SessionWrite) -> tuple[Session, BlobWrite, EncodedEntries]:
        """The session as it is stored, the encoded and encrypted write for the driver, and encoded entries.

        These entries need not be encoded again when the session is written next.
        """
        session, entries, through = put.session, put.cold, self._codec.encode
        if self._redaction.enabled:
            session, entries = self._redaction.session(session), [*map(self._redaction.entry, entries)]
        cached = self._cache.get(key)
        blob, encoded_entries = encode_further(
            session, cached.encoded_entries if cached else EncodedEntries()
        )
        write = BlobWrite(
            blob=through(key, blob),
            version=put.version,
            ttl=put.ttl,
            cold=[through(key, extensible.encode(entry)) for entry in entries],
            at=put.at,
            background=put.background,
            new_version=put.new_version or draw_version(),
            due=first_due(self.due, put.session),
        )
        return session, write, encoded_entries

    async def _with_last_write(
        self, key: Key, stored: StoredSession | None, written: _LastWrite
    ) -> StoredSession | None:
        """What was read; where that lacks this process's last write, the session as it was written.

        Where that write had moved entries to the cold part, these are lost, and what was read is returned.
        """
        if stored is not None:
            is_lost = stored.version in written.replaces
        else:
            is_lost = asyncio.get_running_loop().time() < written.until and not await self.deleted(key)
        session, version, _ = stored or NOT_STORED
        if is_lost and (cached := self._cache.get(key)):
            last = cached.stored
            if last.session.cold_count == session.cold_count:
                return last._replace(version=version)
        if is_lost != written.is_lost and self._last_writes.get(key) is written:
            self._last_writes[key] = msgspec.structs.replace(written, is_lost=is_lost)
        return stored

    def _forget(self, key: Key) -> None:
        self._cache.pop(key, None)
        self.heads.pop(key, None)
        self._last_writes.pop(key, None)

    def _sweep(self) -> None:
        """Drops what was cached more than a minute ago."""
        loop = asyncio.get_running_loop()
        due = loop.time() - self._cache_seconds
        for key in [key for key, cached in self._cache.items() if cached.at <= due]:
            del self._cache[key]
        self._timer = loop.call_later(self._cache_seconds, self._sweep) if self._cache else None


class StoreBreaker:
    """A circuit breaker, so that a dead or slow store does not cost each call its deadline.

    It opens when an operation of a call fails after more than a quarter of ``deadline``; calls are refused at
    once then. Probes ping the store in the background, after pauses that grow to a second. An answer within
    ``deadline`` closes the breaker, and so does a quick refusal, which costs calls nothing.

    ``background`` is a driver of the same store with a longer deadline. While the breaker is open and that
    driver answers, background operations and turns' writes go there, so that a store that is always slow is
    still written. Otherwise background operations wait up to a second for a probe.
    """

    def __init__(self, driver: Store, background: Store | None, *, deadline: float) -> None:
        self._driver = driver
        self._background = background
        self._deadline = deadline
        self._patience = deadline / 4
        self._probe: asyncio.Task[None] | None = None
        self._background_answers = False
        self._outage = Outage(
            f"Memory takes longer than memory.deadline ({deadline * 1000:.0f} ms): turns are written, and no"
            " call knows what was said before",
            "Memory answers within memory.deadline again",
        )

    @property
    def is_open(self) -> bool:
        """Whether calls are refused."""
        return self._probe is not None and not self._probe.done()

    def driver(self, *, fallback: bool = False) -> Store:
        """The driver for a call; with ``fallback`` the other one while the breaker is open.

        Raises StoreError where the breaker is open.
        """
        if self._probe is None or self._probe.done():
            return self._driver
        if fallback and self._background_answers and self._background:
            return self._background
        raise _not_in_time()

    async def background(self) -> Store:
        """The driver for an operation that no call waits for. Raises StoreError where none answers."""
        if self._probe and self.is_open and not self._background_answers:
            await asyncio.wait({self._probe}, timeout=_BACKOFF.longest)
            if self.is_open and not self._background_answers:
                raise _not_in_time()
        return self._background or self._driver

    def failed(self, seconds: float) -> None:
        """Records a failed operation of a call, which took so many seconds."""
        if seconds > self._patience and not self.is_open:
            self._probe = asyncio.create_task(self._run_probes())

    async def aclose(self) -> None:
        """Ends the probes and closes the drivers."""
        await cancel_and_wait(self._probe)
        await asyncio.gather(*(driver.aclose() for driver in (self._driver, self._background) if driver))

    async def _run_probes(self) -> None:
        """Probes until the driver answers in time."""
        background = (
            asyncio.create_task(self._probe_background(self._background)) if self._background else None
        )
        failures = 0
        try:
            while not await self._answers_in_time():
                failures += 1
                await asyncio.sleep(_BACKOFF.pause(failures))
        finally:
            self._background_answers = False
            if background:
                background.cancel()
        self._outage.end()

    async def _answers_in_time(self) -> bool:
        began = time.perf_counter()
        try:
            await self._driver.ping()
        except StoreError:
            return time.perf_counter() - began <= self._patience
        return time.perf_counter() - began <= self._deadline

    async def _probe_background(self, driver: Store) -> None:
        """Asks again and again whether the store answers at all; logs it where it does not for a while."""
        report_at = time.perf_counter() + _REPORT_AFTER
        while True:
            try:
                await driver.ping()
            except StoreError:
                self._background_answers = False
            else:
                self._background_answers = True
                if time.perf_counter() > report_at:
                    self._outage.begin()
            await asyncio.sleep(_BACKOFF.longest)


def _not_in_time() -> StoreError:
    return StoreError("the store did not answer within memory.deadline, and is asked again in a while")
