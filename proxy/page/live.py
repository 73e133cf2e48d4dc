"""Turns as they happen."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from itertools import islice
from typing import Final

import msgspec
from starlette.responses import Response

from proxy.edge.endless import Endless
from proxy.observe.feed import Event
from proxy.page.paper import GUARDED
from proxy.page.room import Room
from proxy.page.visitor import is_secure

_HERE: Final = "live"
_ROWS: Final = 100
_GATHERED: Final = 0.2
_HEARTBEAT: Final = 1.0
_SILENCES: Final = 15
_UNBUFFERED: Final = {**GUARDED, "x-accel-buffering": "no"}


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A turn as a line of a table; times are lengths in seconds. ``kept`` is whether it can be looked at."""

    id: str
    at: float
    session: str | None
    user: str | None
    model: str | None
    pipeline: str
    state: str
    first_token: float | None
    duration: float | None
    kept: bool


async def _shown(room: Room) -> Response:
    return await room.page("live.html", _HERE, rows=_rows(room, {}), address=_address(room))


def _address(room: Room) -> str:
    """Where this server is, as the browser has it."""
    return f"http{'s' if is_secure('', room.headers) else ''}://{room.headers.get('host', '127.0.0.1:8080')}"


def _rows(room: Room, streaming: Mapping[str, Event]) -> Sequence[Row]:
    """The newest turns: those that are being answered, and those that have ended."""
    kept = room.server.traces.kept(room.tenant)  # first, so that the feed has heard of these
    ended = (Event.of(account) for account in islice(room.server.feed.newest(room.tenant), _ROWS))
    rows = [_row(event, kept=event.id in kept) for event in (*streaming.values(), *ended)]
    return sorted(rows, key=lambda row: row.at, reverse=True)[:_ROWS]


async def _streamed(room: Room) -> Response:
    return Endless(_events(room), _UNBUFFERED)


async def _events(room: Room) -> AsyncIterator[bytes]:
    """What the table holds, whenever it changes, as server-sent events; browsers come back to their end.

    It ends when the server does or has another configuration.
    """
    yield b"retry: 1000\n\n"
    turns = room.server.feed.turns(room.tenant)
    silent, streaming, sent = 0, dict[str, Event](), None
    async for batch in _gathered(turns):
        if room.server.phase != "ready" or room.server.parts is not room.parts:
            break
        news = {**streaming, **batch}
        streaming = {turn: event for turn, event in news.items() if event.state == "streaming"}
        rows = {row.id: row for row in _rows(room, streaming)}
        silent = 0 if rows != sent else silent + 1
        if rows != sent:
            yield await asyncio.to_thread(_event, room, rows, sent or {})
            sent = rows
        elif silent % _SILENCES == 0:
            yield b": still here\n\n"


async def _gathered(turns: AsyncIterator[Event]) -> AsyncIterator[Mapping[str, Event]]:
    """What came within a fifth of a second, the newest of each turn; nothing after a second of silence."""
    news: dict[str, Event] = {}
    clock = asyncio.get_running_loop().time
    due = clock() + _GATHERED
    coming = asyncio.ensure_future(anext(turns, None))
    try:
        while True:
            done, _ = await asyncio.wait([coming], timeout=max(0.0, due - clock()))
            if done:
                if (event := coming.result()) is None:
                    return
                due = due if news else clock() + _GATHERED
                news[event.id] = event
                coming = asyncio.ensure_future(anext(turns, None))
            if clock() >= due:
                yield news
                news = {}
                due = clock() + _HEARTBEAT
    finally:
        coming.cancel()


def _event(room: Room, rows: Mapping[str, Row], sent: Mapping[str, Row]) -> bytes:
    """The ids of all rows in their order, and the rows that the browser does not have like this."""
    changed = [row for row in rows.values() if row != sent.get(row.id)]
    news = {row.id: room.paper.text("row.html", row=row) for row in changed}
    return b"event: turns\ndata: " + msgspec.json.encode({"ids": list(rows), "rows": news}) + b"\n\n"


def _row(event: Event, *, kept: bool) -> Row:
    first = event.first_token_ms
    return Row(
        id=event.id,
        at=event.at,
        session=event.session,
        user=event.user,
        model=event.model,
        pipeline=event.pipeline,
        state=event.state,
        first_token=None if first is None else first / 1000,
        duration=None if event.state == "streaming" else event.duration_ms / 1000,
        kept=kept,
    )


ROUTES: Final = (
    ("GET", "/", _shown),
    ("GET", "/live", _shown),
    ("GET", "/live/events", _streamed),
)
