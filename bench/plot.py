"""Measures as a picture, for those who want one."""

import argparse
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from bench.table import Row


def draw(rows: Sequence[Row], path: Path) -> None:
    """Writes what is added to the first token, and CPU per stream, by streams at once."""
    from matplotlib import pyplot as plt  # noqa: PLC0415 - only who draws needs it installed

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
    """The file that is named; nobody measures for half an hour to learn that it cannot be drawn."""
    if find_spec("matplotlib") is None:
        raise argparse.ArgumentTypeError("a picture needs matplotlib: install it with .venv/bin/pip")
    return Path(name)
