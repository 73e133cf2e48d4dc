"""Shows measurements as a table, and as a picture."""

import argparse
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import msgspec

from bench.load import Block, quantile

_HEAD = (
    "| system | load | CPU ms per answer | times nginx | answers per second"
    " | added to the first token, ms p50 / p90 / p99 | added to a delta, ms p50 / p99"
    " | MB idle / loaded | cold start, s | errors |"
)


class Row(msgspec.Struct, frozen=True):
    """A system under one load, and the same load without it."""

    system: str
    kind: str
    block: Block
    direct: Block
    idle: float
    cold: float

    @property
    def cpu(self) -> float:
        """CPU time per stream in milliseconds."""
        return self.block.cpu / max(self.block.streams, 1)

    def first(self, share: float) -> float:
        """The time that it adds to the first token, in milliseconds, at a quantile."""
        return quantile(self.block.firsts, share) - quantile(self.direct.firsts, share)

    def lag(self, share: float) -> float:
        """The time that it adds to a later delta, in milliseconds, at a quantile."""
        return quantile(self.block.lags, share) - quantile(self.direct.lags, share)

    def summary(self) -> str:
        """Returns the row as one line."""
        block = self.block
        return (
            f"{self.system}, {self.kind}: {block.streams} answers, {self.cpu:.3f} ms CPU,"
            f" first token +{self.first(0.5):.2f} / +{self.first(0.99):.2f} ms, {block.errors} errors"
        )


def printed(rows: Sequence[Row]) -> str:
    """Returns all rows as Markdown; ratios are to nginx under the same load."""
    base = {row.kind: row.cpu for row in rows if row.system == "nginx"}
    lines = [_HEAD, "|---" * 10 + "|", *(_line(row, base.get(row.kind)) for row in rows)]
    return "\n".join(lines)


def _line(row: Row, base: float | None) -> str:
    cells = (
        row.system,
        row.kind,
        f"{row.cpu:.3f}",
        f"{row.cpu / base:.2f}" if base else "",
        f"{row.block.streams / row.block.seconds:.0f}" if row.block.seconds else "",
        " / ".join(f"{row.first(share):.2f}" for share in (0.5, 0.9, 0.99)),
        " / ".join(f"{row.lag(share):.2f}" for share in (0.5, 0.99)),
        f"{row.idle:.0f} / {max(row.idle, row.block.megabytes):.0f}",
        f"{row.cold:.2f}",
        row.block.errors,
    )
    return f"| {' | '.join(map(str, cells))} |"


def draw(rows: Sequence[Row], path: Path) -> None:
    """Draws the time added to the first token, and CPU per stream, by the number of streams."""
    from matplotlib import pyplot as plt  # noqa: PLC0415 - it need not be installed

    figure, (first, cpu) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    for name in dict.fromkeys(row.system for row in rows):
        own = [row for row in rows if row.system == name and "streams" in row.kind]
        levels = [row.block.callers for row in own]
        (line,) = first.plot(levels, [row.first(0.5) for row in own], marker="o", label=name)
        color = line.get_color()
        first.plot(levels, [row.first(0.99) for row in own], marker=".", linestyle=":", color=color)
        cpu.plot(levels, [row.cpu for row in own], marker="o", color=color, label=name)
    first.set(
        title="Added to the first token (dotted: p99)", xlabel="streams at once", ylabel="ms", yscale="symlog"
    )
    cpu.set(title="CPU per stream", xlabel="streams at once", ylabel="ms", yscale="log")
    cpu.legend()
    figure.savefig(path, dpi=120)


def picture(name: str) -> Path:
    """Returns the file to draw to; raises an error before the measurement if drawing is impossible."""
    if find_spec("matplotlib") is None:
        raise argparse.ArgumentTypeError("a picture needs matplotlib: install it with .venv/bin/pip")
    return Path(name)
