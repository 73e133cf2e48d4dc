"""Turns as they happen."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from itertools import islice
from typing import Final

import msgspec
from starlette.responses import Response

from proxy.http.reply import EventStream
from proxy.observe.feed import Event
from proxy.page.renderer import HEADERS
from proxy.page.request import PageRequest
from proxy.page.viewer import is_secure

_HERE: Final = "live"
_ROWS: Final = 100
_GATHERED: Final = 0.2
_HEARTBEAT: Final = 1.0
_SILENCES: Final = 15
_UNBUFFERED: Final = {**HEADERS, "x-accel-buffering": "no"}


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


async def _shown(request: PageRequest) -> Response:
    return await request.page("live.html", _HERE, rows=_rows(request, {}), address=_address(request))


def _address(request: PageRequest) -> str:
    """The server's address as the browser has it."""
    scheme = "https" if is_secure("", request.headers) else "http"
    return f"{scheme}://{request.headers.get('host', '127.0.0.1:8080')}"


def _rows(request: PageRequest, streaming: Mapping[str, Event]) -> Sequence[Row]:
    """The newest turns: those that are being answered, and those that have ended."""
    kept = request.server.traces.ids(request.tenant)  # first, so that the feed has heard of these
    ended = (Event.of(account) for account in islice(request.server.feed.newest(request.tenant), _ROWS))
    rows = [_row(event, kept=event.id in kept) for event in (*streaming.values(), *ended)]
    return sorted(rows, key=lambda row: row.at, reverse=True)[:_ROWS]


async def _streamed(request: PageRequest) -> Response:
    return EventStream(_events(request), _UNBUFFERED)


async def _events(request: PageRequest) -> AsyncIterator[bytes]:
    """What the table holds, whenever it changes, as server-sent events; browsers come back to their end.

    It ends when the server does or has another configuration.
    """
    yield b"retry: 1000\n\n"
    turns = request.server.feed.subscribe(request.tenant)
    silent, streaming, sent = 0, dict[str, Event](), None
    async for batch in _gathered(turns):
        if request.server.phase != "ready" or request.server.runtime is not request.runtime:
            break
        news = {**streaming, **batch}
        streaming = {turn: event for turn, event in news.items() if event.state == "streaming"}
        rows = {row.id: row for row in _rows(request, streaming)}
        silent = 0 if rows != sent else silent + 1
        if rows != sent:
            yield await asyncio.to_thread(_event, request, rows, sent or {})
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


def _event(request: PageRequest, rows: Mapping[str, Row], sent: Mapping[str, Row]) -> bytes:
    """The ids of all rows in their order, and the rows that the browser does not have like this."""
    changed = [row for row in rows.values() if row != sent.get(row.id)]
    news = {row.id: request.renderer.text("row.html", row=row) for row in changed}
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
