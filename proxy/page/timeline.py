"""Where a turn's time went, as bars: its own stages on one scale, the whole turn on another."""

from collections.abc import Iterator, Sequence

import msgspec

from proxy.traces import Trace

WIDTH = 1000.0
_NARROWEST = 2.0
_NAMES = {
    "receive": "Receive",
    "recall": "Session",
    "memory": "Recall",
    "filters": "Filters",
    "upstream": "Upstream",
}
_WHAT = {
    "receive": "reading the request's body",
    "recall": "parsing it, and finding out whose turn it is",
    "memory": "what memory holds of the session",
    "filters": "the request filters, and putting the body together",
    "upstream": "until the model has begun to answer",
    "First token": "the answer's first bytes go to the client",
    "Chunks": "the answer streams",
    "Record": "written to memory, off the call",
}


class Bar(msgspec.Struct, frozen=True, kw_only=True):
    """One stage: where its bar stands in a picture ``WIDTH`` wide, and its seconds."""

    name: str
    what: str
    kind: str
    start: float
    width: float
    seconds: float
    ticks: Sequence[float] = ()


class Picture(msgspec.Struct, frozen=True, kw_only=True):
    """Bars on one scale, which is ``seconds`` long."""

    title: str
    seconds: float
    bars: Sequence[Bar]


def pictures(trace: Trace, written: float | None) -> Sequence[Picture]:
    """A turn's own work, and all of the turn; ``written`` is when memory had it."""
    stages = list(_stages(trace))
    own = [each for each in stages if each[0] != "upstream"]
    inside = Picture(title="Turnkeeper's own work", seconds=0.0, bars=())
    if own:
        start, end = own[0][1], max(end for _, _, end in own)
        inside = Picture(
            title="Turnkeeper's own work", seconds=end - start, bars=list(_drawn(own, start, end))
        )
    everything = [("own", trace.began, own[-1][2] if own else trace.end), *_rest(trace, stages, written)]
    end = max(end for _, _, end in everything)
    whole = Picture(
        title="The whole turn",
        seconds=trace.end - trace.began,
        bars=list(_drawn(everything, trace.began, end, trace.chunks)),
    )
    return [whole, inside]


def _stages(trace: Trace) -> Iterator[tuple[str, float, float]]:
    """Each mark until the next; the last until the first chunk, or the turn's end."""
    last = trace.chunks[0] if trace.chunks else trace.end
    marks = [("receive", trace.began), *trace.marks]
    ends = [*(mark for _, mark in marks[1:]), last]
    for (name, start), end in zip(marks, ends, strict=True):
        yield name, start, max(start, end)


def _rest(
    trace: Trace, stages: Sequence[tuple[str, float, float]], written: float | None
) -> Iterator[tuple[str, float, float]]:
    yield from (each for each in stages if each[0] == "upstream")
    if trace.chunks:
        yield "First token", trace.chunks[0], trace.chunks[0]
        yield "Chunks", trace.chunks[0], trace.end
    if written is not None:
        yield "Record", trace.end, max(trace.end, written)


def _drawn(
    stages: Sequence[tuple[str, float, float]], start: float, end: float, ticks: Sequence[float] = ()
) -> Iterator[Bar]:
    scale = WIDTH / (end - start) if end > start else 0.0
    for name, began, ended in stages:
        width = max(_NARROWEST, (ended - began) * scale)
        left = min((began - start) * scale, WIDTH - width)
        instant = name == "First token"
        yield Bar(
            name="Turnkeeper" if name == "own" else _NAMES.get(name, name),
            what="receive, session, recall and filters; closer below"
            if name == "own"
            else _WHAT.get(name, ""),
            kind="own" if name in {"own", *_NAMES} - {"upstream"} else name.lower().replace(" ", "-"),
            start=round(max(0.0, left), 2),
            width=round(width, 2),
            seconds=(ended - start) if instant else ended - began,
            ticks=[round((tick - start) * scale, 2) for tick in ticks] if name == "Chunks" else (),
        )
