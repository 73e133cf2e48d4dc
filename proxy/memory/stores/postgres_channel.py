"""Messages between the servers of one PostgreSQL, by LISTEN and NOTIFY."""

import asyncio
import base64
import binascii
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple

import asyncpg

from proxy.circuit import Outage
from proxy.memory.errors import StoreError
from proxy.memory.stores.addresses import checked_postgres_address
from proxy.memory.stores.channel import REJOINING, Channel, ClockReading, Receive, compare_clocks
from proxy.memory.stores.postgres_pool import FAILURES
from proxy.memory.tasks import cancel_and_wait, retrieve_exception, settle, wait_for_event

_LARGEST: Final = 5_900
"""PostgreSQL takes payloads of less than 8000 bytes, and messages are sent in base64."""
_CONNECT_SECONDS: Final = 2.0
_CHECK_EVERY: Final = 10.0
_POOLED_PAUSE: Final = 60.0
# Each schema has its own channel, because a database has one namespace of channels for all schemas.
_NAME: Final = "'turnkeeper_' || md5(current_schema())"
_TIME: Final = "SELECT extract(epoch FROM clock_timestamp())::float8"
_NOTIFY: Final = f"""
SELECT pg_notify({_NAME}, (extract(epoch FROM clock_timestamp())::float8 - age)::text || ' ' || data)
FROM unnest($1::float8[], $2::text[]) AS message (age, data)
"""


def open(url: str, *, deadline: float) -> Channel:  # noqa: A001  (a channel is opened, as a store is)
    """Returns the channel of the PostgreSQL at an address, not connected yet.

    Raises ValueError for an invalid address, without the address.
    """
    return PostgresChannel(checked_postgres_address(url), deadline=deadline)


class _Waiting(NamedTuple):
    """A message to be sent; the event that it is about began at ``since``, by ``time.monotonic``."""

    data: str
    since: float
    sent: asyncio.Future[None]


class PostgresChannel:
    """One channel for each schema. Messages that arrive while a statement runs share the next one.

    A pooler that gives each transaction another connection passes no notifications on, which is logged.
    """

    largest = _LARGEST

    def __init__(self, url: str, *, deadline: float) -> None:
        self._url = url
        self._deadline = deadline
        self._waiting: list[_Waiting] = []
        self._sending: asyncio.Task[None] | None = None
        self._connection: Any = None
        self._outage = Outage(
            "PostgreSQL passes no messages on between hosts, as behind a pooler of transactions (%s)",
            "PostgreSQL passes messages on between hosts again",
        )

    async def publish(self, topic: str, data: bytes, *, age: float = 0.0) -> None:  # noqa: ARG002 - there is one order
        """Sends a message, with the server's time. Raises StoreError, and ValueError if it is too large."""
        if len(data) > self.largest:
            raise ValueError("the message is too large")
        sent = asyncio.get_running_loop().create_future()
        sent.add_done_callback(retrieve_exception)
        self._waiting.append(_Waiting(base64.b64encode(data).decode(), time.monotonic() - age, sent))
        if self._sending is None:
            self._sending = asyncio.get_running_loop().create_task(self._send())
        await sent

    async def run(self, receive: Receive, joined: Callable[[], None]) -> None:
        """Receives messages until it is cancelled, and reconnects after a lost connection."""
        failures = 0

        def on_joined() -> None:
            nonlocal failures
            failures = 0
            joined()

        while True:
            is_pooled = False
            try:
                await self._listen(receive, on_joined)
            except _NotPassedOn:
                self._outage.begin("LISTEN hears nothing")
                is_pooled = True
            except (*FAILURES, StoreError):
                pass
            failures += 1
            await asyncio.sleep(_POOLED_PAUSE if is_pooled else REJOINING.pause(failures))

    async def read_clock(self) -> ClockReading:
        """Compares with the server's clock, over a new connection, because it is rarely done."""
        connection = None
        try:
            connection = await self._connect(_CONNECT_SECONDS)
            return await compare_clocks(partial(connection.fetchval, _TIME))
        except FAILURES as error:
            raise StoreError(f"PostgreSQL did not return its time ({type(error).__name__})") from None
        finally:
            if connection:
                connection.terminate()

    async def aclose(self) -> None:
        """Closes the connection over which messages are sent."""
        await cancel_and_wait(self._sending)
        if self._connection:
            self._connection.terminate()

    async def _listen(self, receive: Receive, joined: Callable[[], None]) -> None:
        """Receives messages until the connection is lost. Raises _NotPassedOn if a probe does not return."""
        connection = await self._connect(_CONNECT_SECONDS)
        probe, echoed, lost = secrets.token_hex(8).encode(), asyncio.Event(), asyncio.Event()

        def on_message(_connection: object, _process: int, _channel: str, payload: str) -> None:
            with suppress(ValueError, binascii.Error):  # other programs may notify here
                at, data = payload.split(" ")
                message = base64.b64decode(data, validate=True)
                if message == probe:
                    echoed.set()
                elif echoed.is_set():
                    receive(float(at), message)

        try:
            connection.add_termination_listener(lambda _: lost.set())
            await connection.add_listener(await connection.fetchval(f"SELECT {_NAME}"), on_message)
            await self.publish("", probe)
            await wait_for_event(echoed, _CONNECT_SECONDS)
            if not echoed.is_set():
                raise _NotPassedOn
            self._outage.end()
            joined()
            await wait_for_event(lost, _CHECK_EVERY)
            while not lost.is_set():
                await connection.execute("SELECT 1", timeout=_CONNECT_SECONDS)
                await wait_for_event(lost, _CHECK_EVERY)
        finally:
            connection.terminate()

    async def _send(self) -> None:
        """Sends all waiting messages, also those that arrive meanwhile and those of cancelled senders."""
        error: StoreError | None = None
        try:
            while self._waiting:
                batch, self._waiting = self._waiting, []
                error = StoreError("the channel is closed")
                try:
                    if self._connection is None or self._connection.is_closed():
                        self._connection = await self._connect(max(self._deadline, _CONNECT_SECONDS))
                    now = time.monotonic()
                    ages = [now - each.since for each in batch]
                    await self._connection.execute(_NOTIFY, ages, [each.data for each in batch])
                    error = None
                except FAILURES as failure:
                    error = StoreError(f"PostgreSQL did not accept a message ({type(failure).__name__})")
                    self._connection, connection = None, self._connection
                    if connection:
                        connection.terminate()
                finally:
                    for each in batch:
                        settle(each.sent, error)
        finally:
            self._sending = None
            for each in self._waiting:
                settle(each.sent, error)

    async def _connect(self, within: float) -> Any:
        return await asyncpg.connect(
            self._url, timeout=within, command_timeout=within, statement_cache_size=0
        )


class _NotPassedOn(Exception):
    """A probe that was sent has not returned."""
