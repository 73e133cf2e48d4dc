"""Turns as they happen."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from itertools import islice
from typing import Final

import msgspec
from starlette.responses import Response

from proxy.endless import Endless
from proxy.page.paper import GUARDED
from proxy.page.room import Room
from proxy.page.visitor import is_secure
from proxy.telemetry.feed import Event

_HERE: Final = "live"
_ROWS: Final = 100
_GATHERED: Final = 0.2
_HEARTBEAT: Final = 1.0
_SILENCES: Final = 15
_UNBUFFERED: Final = {**GUARDED, "x-accel-buffering": "no"}


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A turn as a line of a table; times are lengths in seconds."""

    id: str
    at: float
    session: str | None
    user: str | None
    model: str | None
    pipeline: str
    state: str
    first_token: float | None
    duration: float | None


async def _shown(room: Room) -> Response:
    newest = islice(room.server.traces.newest(room.tenant), _ROWS)
    kept = [_of_event(Event.of(trace.account)) for trace in newest]
    return await room.page("live.html", _HERE, rows=kept, address=_address(room))


def _address(room: Room) -> str:
    """Where this server is, as the browser has it."""
    return f"http{'s' if is_secure('', room.headers) else ''}://{room.headers.get('host', '127.0.0.1:8080')}"


async def _streamed(room: Room) -> Response:
    return Endless(_events(room), _UNBUFFERED)


async def _events(room: Room) -> AsyncIterator[bytes]:
    """Rows as server-sent events, until the server ends or has another configuration; browsers come back."""
    yield b"retry: 1000\n\n"
    turns = room.server.feed.turns(room.tenant)
    silent = 0
    async for batch in _gathered(turns):
        if room.server.phase != "ready" or room.server.parts is not room.parts:
            break
        silent = 0 if batch else silent + 1
        if batch:
            yield await asyncio.to_thread(_event, room, batch)
        elif silent % _SILENCES == 0:
            yield b": still here\n\n"


async def _gathered(turns: AsyncIterator[Event]) -> AsyncIterator[Sequence[Event]]:
    """What came within a fifth of a second, the newest of each turn; nothing after a second of silence."""
    news: dict[str, Event] = {}
    clock = asyncio.get_running_loop().time
    due = clock() + _HEARTBEAT
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
                yield list(news.values())[-_ROWS:]
                news = {}
                due = clock() + _HEARTBEAT
    finally:
        coming.cancel()


def _event(room: Room, batch: Sequence[Event]) -> bytes:
    rows = [{"id": event.id, "html": room.paper.text("row.html", row=_of_event(event))} for event in batch]
    return b"event: turns\ndata: " + msgspec.json.encode(rows) + b"\n\n"


def _of_event(event: Event) -> Row:
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
    )


ROUTES: Final = (
    ("GET", "/", _shown),
    ("GET", "/live", _shown),
    ("GET", "/live/events", _streamed),
)
