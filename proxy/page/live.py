"""The live page: turns as they happen."""

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
_BATCH_TIME: Final = 0.2
_HEARTBEAT: Final = 1.0
_BEATS_PER_COMMENT: Final = 15
_UNBUFFERED: Final = {**HEADERS, "x-accel-buffering": "no"}


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A turn as a row of the table; lengths are in seconds. ``has_page`` is whether its trace is kept."""

    id: str
    at: float
    session: str | None
    user: str | None
    model: str | None
    pipeline: str
    state: str
    first_token: float | None
    duration: float | None
    has_page: bool


async def _show(request: PageRequest) -> Response:
    scheme = "https" if is_secure("", request.headers) else "http"
    address = f"{scheme}://{request.headers.get('host', '127.0.0.1:8080')}"
    return await request.page("live.html", _HERE, rows=_rows(request, {}), address=address)


async def _stream(request: PageRequest) -> Response:
    return EventStream(_events(request), _UNBUFFERED)


async def _events(request: PageRequest) -> AsyncIterator[bytes]:
    """The table's changes as server-sent events, until the server ends or has another configuration.

    Browsers reconnect then.
    """
    yield b"retry: 1000\n\n"
    silent, streaming, sent = 0, dict[str, Event](), None
    async for batch in _batches(request.server.feed.subscribe(request.tenant)):
        if request.server.phase != "ready" or request.server.runtime is not request.runtime:
            break
        newest = {**streaming, **batch}
        streaming = {turn: event for turn, event in newest.items() if event.state == "streaming"}
        rows = {row.id: row for row in _rows(request, streaming)}
        silent = 0 if rows != sent else silent + 1
        if rows != sent:
            yield await asyncio.to_thread(_event, request, rows, sent or {})
            sent = rows
        elif silent % _BEATS_PER_COMMENT == 0:
            yield b": still here\n\n"


async def _batches(events: AsyncIterator[Event]) -> AsyncIterator[Mapping[str, Event]]:
    """The newest event of each turn within a fifth of a second; an empty batch after a second of silence."""
    batch: dict[str, Event] = {}
    clock = asyncio.get_running_loop().time
    due = clock() + _BATCH_TIME
    upcoming = asyncio.ensure_future(anext(events, None))
    try:
        while True:
            done, _ = await asyncio.wait([upcoming], timeout=max(0.0, due - clock()))
            if done:
                if (event := upcoming.result()) is None:
                    return
                due = due if batch else clock() + _BATCH_TIME
                batch[event.id] = event
                upcoming = asyncio.ensure_future(anext(events, None))
            if clock() >= due:
                yield batch
                batch = {}
                due = clock() + _HEARTBEAT
    finally:
        upcoming.cancel()


def _rows(request: PageRequest, streaming: Mapping[str, Event]) -> Sequence[Row]:
    """The newest turns: those that are streaming, and those that have ended."""
    server = request.server
    traced = server.traces.ids(request.tenant)  # first, so that the feed has heard of these
    ended = (Event.of(report) for report in islice(server.feed.newest(request.tenant), _ROWS))
    rows = [
        Row(
            id=event.id,
            at=event.at,
            session=event.session,
            user=event.user,
            model=event.model,
            pipeline=event.pipeline,
            state=event.state,
            first_token=None if event.first_token_ms is None else event.first_token_ms / 1000,
            duration=None if event.state == "streaming" else event.duration_ms / 1000,
            has_page=event.id in traced,
        )
        for event in (*streaming.values(), *ended)
    ]
    return sorted(rows, key=lambda row: row.at, reverse=True)[:_ROWS]


def _event(request: PageRequest, rows: Mapping[str, Row], sent: Mapping[str, Row]) -> bytes:
    """The ids of all rows in their order, and the rows that the browser does not have like this."""
    changed = [row for row in rows.values() if row != sent.get(row.id)]
    html = {row.id: request.renderer.text("row.html", row=row) for row in changed}
    return b"event: turns\ndata: " + msgspec.json.encode({"ids": list(rows), "rows": html}) + b"\n\n"


ROUTES: Final = (
    ("GET", "/", _show),
    ("GET", "/live", _show),
    ("GET", "/live/events", _stream),
)
