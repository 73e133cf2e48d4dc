"""Figures of an hour as a small picture."""

from collections.abc import Sequence

import msgspec

WIDTH, HEIGHT = 300, 56


class Plot(msgspec.Struct, frozen=True, kw_only=True):
    """One figure over time. ``points`` are for a line, gaps left out; ``bars`` are x, y, width, height."""

    title: str
    what: str
    last: str
    most: str
    lines: Sequence[str] = ()
    bars: Sequence[tuple[float, float, float, float]] = ()
    alarm: bool = False


def bars(values: Sequence[float]) -> Sequence[tuple[float, float, float, float]]:
    """A bar for each value that is not none, as high as it is large."""
    most = max(values, default=0) or 1
    step = WIDTH / max(1, len(values))
    return [
        (round(i * step + 0.5, 2), round(HEIGHT - value / most * HEIGHT, 2), round(step - 1, 2), height)
        for i, value in enumerate(values)
        if (height := round(value / most * HEIGHT, 2))
    ]


def lines(values: Sequence[float | None], most: float | None = None) -> Sequence[str]:
    """Points for each run of values in a row; a value alone is a short line."""
    top = most or max((value for value in values if value is not None), default=0) or 1
    step = WIDTH / max(1, len(values))
    runs: list[list[str]] = [[]]
    for i, value in enumerate(values):
        if value is None:
            runs.append([])
            continue
        y = round(HEIGHT - 1 - value / top * (HEIGHT - 2), 2)
        runs[-1] += [f"{i * step:.1f},{y}", f"{(i + 1) * step:.1f},{y}"]
    return [" ".join(run) for run in runs if run]
