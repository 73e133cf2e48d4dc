"""The live page: turns as they happen."""

import asyncio
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from itertools import islice
from typing import Final, Self, get_args

import msgspec
from starlette.responses import Response

from proxy.http.reply import EventStream
from proxy.observe.observation import State, TurnReport
from proxy.page.renderer import HEADERS
from proxy.page.request import PageRequest
from proxy.page.viewer import is_secure

_HERE: Final = "live"
_ROWS: Final = 100
_BATCH_TIME: Final = 0.2
_HEARTBEAT: Final = 1.0
_BEATS_PER_COMMENT: Final = 15
_STATES: Final = get_args(State)
_SLOW: Final = (500, 1000, 2000)
_LONGEST_SEARCH: Final = 200


class TurnRow(msgspec.Struct, frozen=True):
    """A turn as a row of the table; ``has_page`` is whether its trace is kept, and ``failure`` its error.

    ``has_session`` is whether its conversation may be stored; a failed turn stores nothing.
    """

    turn: TurnReport
    has_page: bool
    failure: str | None
    has_session: bool


class Filters(msgspec.Struct, frozen=True, kw_only=True):
    """The filters of the table; ``slow`` is the least time to the first token, in milliseconds.

    A matching turn contains all words of ``search``. A word after ``session:`` or ``user:`` is searched for
    in that id only.
    """

    search: str = ""
    state: str = ""
    slow: int = 0

    @classmethod
    def of(cls, query: Mapping[str, str]) -> Self:
        """Parses the filters of a form; ignores invalid values."""
        state, slow = query.get("state", ""), query.get("slow", "")
        return cls(
            search=query.get("q", "").strip()[:_LONGEST_SEARCH],
            state=state if state in _STATES else "",
            slow=int(slow) if re.fullmatch(r"[0-9]{1,6}", slow, re.ASCII) else 0,
        )

    def match(self, turn: TurnReport) -> bool:
        """Whether a turn passes the filters."""
        if self.state and turn.state != self.state:
            return False
        if self.slow and (turn.first_token or 0.0) * 1000 < self.slow:
            return False
        session, user = turn.session or "", turn.user or ""
        texts = [session, user, turn.model or "", turn.pipeline]
        if excerpt := turn.excerpt:
            texts += [excerpt.words, excerpt.answer]
        whole = "\n".join(texts).casefold()
        for word in self.search.casefold().split():
            place, _, name = word.partition(":")
            where = {"session": session, "user": user}.get(place)
            if word not in whole if where is None else name not in where.casefold():
                return False
        return True


async def _show(request: PageRequest) -> Response:
    scheme = "https" if is_secure(request.headers) else "http"
    filters = Filters.of(request.query)
    await request.server.traces.fetch(request.tenant)
    return await request.page(
        "live.html",
        _HERE,
        rows=_rows(request, filters, {}),
        address=f"{scheme}://{request.headers.get('host', '127.0.0.1:8080')}",
        filters=filters,
        states=_STATES,
        slow=_SLOW,
    )


async def _stream(request: PageRequest) -> Response:
    return EventStream(_events(request), HEADERS)


async def _events(request: PageRequest) -> AsyncIterator[bytes]:
    """Yields changes of the table as server-sent events, until the server drains or is reconfigured.

    Browsers then reconnect.
    """
    yield b"retry: 1000\n\n"
    filters = Filters.of(request.query)
    silent, on_its_way, last_rows = 0, dict[str, TurnReport](), None
    async for batch in _batches(request.server.feed.reports(request.tenant)):
        if request.server.phase != "ready" or request.server.runtime is not request.runtime:
            break
        newest = {**on_its_way, **batch}
        on_its_way = {id_: turn for id_, turn in newest.items() if turn.outcome is None}
        rows = {row.turn.id: row for row in _rows(request, filters, on_its_way)}
        silent = 0 if rows != last_rows else silent + 1
        if rows != last_rows:
            yield await asyncio.to_thread(_event, request, rows, last_rows or {})
            last_rows = rows
        elif silent % _BEATS_PER_COMMENT == 0:
            yield b": still here\n\n"


async def _batches(turns: AsyncIterator[TurnReport]) -> AsyncIterator[Mapping[str, TurnReport]]:
    """Yields the newest report of each turn within a fifth of a second; ``{}`` after a second without any."""
    batch: dict[str, TurnReport] = {}
    clock = asyncio.get_running_loop().time
    due = clock() + _BATCH_TIME
    upcoming = asyncio.ensure_future(anext(turns, None))
    try:
        while True:
            done, _ = await asyncio.wait([upcoming], timeout=max(0.0, due - clock()))
            if done:
                if (turn := upcoming.result()) is None:
                    return
                due = due if batch else clock() + _BATCH_TIME
                batch[turn.id] = turn
                upcoming = asyncio.ensure_future(anext(turns, None))
            if clock() >= due:
                yield batch
                batch = {}
                due = clock() + _HEARTBEAT
    finally:
        upcoming.cancel()


def _rows(request: PageRequest, filters: Filters, on_its_way: Mapping[str, TurnReport]) -> Sequence[TurnRow]:
    """The newest 100 turns that match, under way or ended, the newest first."""
    server = request.server
    reports = list(server.traces.ended(request.tenant))
    traced = server.traces.failures(request.tenant)
    keeps_all = server.traces.shared is not None and server.traces.retention.turns > 0
    answered = {turn.session for turn in reports if turn.outcome != "failed"}
    ended = filter(filters.match, reports)
    under_way = filter(filters.match, on_its_way.values())
    rows = [
        TurnRow(
            turn,
            has_page=turn.id in traced or (keeps_all and turn.outcome is not None),
            failure=traced.get(turn.id) or turn.code,
            has_session=request.runtime.memory is not None
            and (turn.outcome != "failed" or turn.session in answered),
        )
        for turn in (*under_way, *islice(ended, _ROWS))
    ]
    return sorted(rows, key=lambda row: row.turn.at, reverse=True)[:_ROWS]


def _event(request: PageRequest, rows: Mapping[str, TurnRow], last_rows: Mapping[str, TurnRow]) -> bytes:
    """Encodes the ids of all rows, in order, and the HTML of the rows that are new or have changed."""
    changed = [row for row in rows.values() if row != last_rows.get(row.turn.id)]
    html = {row.turn.id: request.renderer.text("row.html", row=row) for row in changed}
    return b"event: turns\ndata: " + msgspec.json.encode({"ids": list(rows), "rows": html}) + b"\n\n"


ROUTES: Final = (
    ("GET", "/", _show),
    ("GET", "/live", _show),
    ("GET", "/live/events", _stream),
)
