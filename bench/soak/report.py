"""The measurements of a soak and their report: over time, in total, and the failures."""

import asyncio
import statistics
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

import msgspec

from bench.load import quantile
from bench.serving import Running
from bench.soak.caller import Crowd, First
from bench.soak.disturbance import Outage, Reloads, Restarts
from bench.soak.ledger import Ledger

FLAT_FILES = 40
"""Files that a process may hold at the end beside those of its start: SQLite keeps some to use again."""
_DRIFT, _DRIFT_LEAST = 1.5, 0.005
_MOST_DEGRADED = 0.01
_TELLING = 120.0
"""Seconds of which times can be judged: in fewer, a machine that does other things as well says more."""
_ROWS = 12
_KINDS = ("first", "server", "background")
_LEAST_GROWN = 1.0
"""Megabytes that are no growth, however little a process has."""
_WANTED = {"whole", "left", *(f"superseded: {each}" for each in ("409", "whole", "nothing"))}


class Sample(msgspec.Struct, frozen=True):
    """A sample of the server: time, seconds of CPU so far, megabytes, open files, and turns.

    ``megabytes`` are those of each kind of its processes.
    """

    at: float
    seconds: float
    megabytes: Mapping[str, float]
    files: int
    talking: int
    waiting: int
    lost: int
    in_flight: int

    @property
    def total(self) -> float:
        """The megabytes of all processes together."""
        return sum(self.megabytes.values())


class Gauge:
    """Takes samples of a server."""

    def __init__(self, port: int, server: Running) -> None:
        self.samples: list[Sample] = []
        self._port = port
        self._server = server

    async def look(self, talking: int = 0) -> Sample:
        """Takes a sample; ``talking`` is the number of callers."""
        self.samples.append(await asyncio.to_thread(self._sample, talking))
        return self.samples[-1]

    def _sample(self, talking: int) -> Sample:
        with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/metrics", timeout=10) as got:
            told = dict(line.rsplit(" ", 1) for line in got.read().decode().splitlines() if line[:1] != "#")
        return Sample(
            time.monotonic(),
            self._server.spent().seconds,
            self._server.megabytes(),
            files_of(self._server.pid),
            talking,
            int(float(told["turnkeeper_memory_queue_turns"])),
            int(float(told["turnkeeper_lost_turns_total"])),
            int(float(told["turnkeeper_turns_in_flight"])),
        )


def files_of(pid: int) -> int:
    """Returns the number of open files of a process and its children."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return sum(len(list(Path(f"/proc/{each}/fd").iterdir())) for each in [pid, *children])


class Soaked(NamedTuple):
    """The results of a soak."""

    crowd: Crowd
    ledger: Ledger
    samples: Sequence[Sample]
    reloads: Reloads
    restarts: Restarts | None
    large: Mapping[str, int]

    @property
    def unexplained(self) -> int:
        """The number of turns without memory while it was available."""
        explained = self.restarts.explains if self.restarts else lambda _: False
        return sum(not explained(moment) for moment in self.crowd.degraded)

    @property
    def outages(self) -> Sequence[Outage]:
        """The outages of memory."""
        return self.restarts.outages if self.restarts else []


def table(soaked: Soaked) -> str:
    """Returns the samples over time as Markdown."""
    head = ["minute", "calls", "turns/s", "first token ms p50", "p99", "CPU %"]
    head += ["MB", *(f"MB {kind}" for kind in _KINDS), "files", "Redis away s"]
    minutes = round((soaked.samples[-1].at - soaked.samples[0].at) / 60)
    rows = _rows(soaked, max(_ROWS, minutes))
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---:"] * len(head), *rows])


def _rows(soaked: Soaked, slices: int) -> Iterator[list[str]]:
    samples = soaked.samples
    start, end = samples[0].at, samples[-1].at
    size = (end - start) / slices
    for place in range(slices):
        since, until = start + place * size, start + (place + 1) * size
        seen = [one for one in samples if since <= one.at <= until]
        if seen:
            yield [f"{(until - start) / 60:.1f}", *_figures(soaked, seen, since, until)]


def _figures(soaked: Soaked, seen: Sequence[Sample], since: float, until: float) -> list[str]:
    waits = [one.waited * 1000 for one in soaked.crowd.firsts if since <= one.at < until]
    away = sum(max(0.0, min(one.end, until) - max(one.start, since)) for one in soaked.outages)
    passed = seen[-1].at - seen[0].at
    busy = (seen[-1].seconds - seen[0].seconds) / passed * 100 if passed else 0.0
    return [
        f"{statistics.median(one.talking for one in seen):.0f}",
        f"{len(waits) / (until - since):.1f}",
        f"{quantile(waits, 0.5):.1f}",
        f"{quantile(waits, 0.99):.1f}",
        f"{busy:.0f}",
        f"{statistics.median(one.total for one in seen):.1f}",
        *(f"{statistics.median(one.megabytes.get(kind, 0.0) for one in seen):.1f}" for kind in _KINDS),
        f"{max(one.files for one in seen)}",
        f"{away:.1f}" if away else "",
    ]


def summary(soaked: Soaked, most_grown: float) -> str:
    """Returns the figures as lines."""
    first, last = soaked.samples[0], soaked.samples[-1]
    ledger, crowd, waits = soaked.ledger, soaked.crowd, [one.waited * 1000 for one in soaked.crowd.firsts]
    outcomes = ", ".join(f"{count} {outcome}" for outcome, count in crowd.outcomes.most_common())
    away = sum(one.end - one.start for one in soaked.outages)
    return (
        f"turns: {outcomes}\n"
        f"errors: {sum(count for what, count in crowd.outcomes.items() if what not in _WANTED)}\n"
        f"first token, ms: {quantile(waits, 0.5):.1f} p50, {quantile(waits, 0.99):.1f} p99\n"
        f"large requests: {sum(soaked.large.values())}\n"
        f"reloads: {soaked.reloads.good} good, {soaked.reloads.bad} bad\n"
        f"restarts of Redis: {len(soaked.outages)}, away for {away:.1f} s\n"
        f"without memory: {len(crowd.degraded)} turns, {soaked.unexplained} of them while it was there\n"
        f"lost: {last.lost} counted by the server; {len(ledger.faults)} faults in {ledger.calls} calls with"
        f" {ledger.turns} turns looked up after their end ({ledger.slowest:.1f} s at most until all is held),"
        f" {ledger.calls_again} calls again at the last\n"
        f"megabytes: {first.total:.1f} at first, {max(s.total for s in soaked.samples):.1f} at most,"
        f" {last.total:.1f} at last\n"
        f"{_verdict(soaked.samples, most_grown)}\n"
        f"open files: {first.files} at first, {max(s.files for s in soaked.samples)} at most,"
        f" {last.files} at last"
    )


def faults(soaked: Soaked, most_grown: float) -> list[str]:
    """Returns all failures: lost turns, unexplained errors, and growth since the first third."""
    outcomes = soaked.crowd.outcomes
    found = [f"{count} turns: {outcome}" for outcome, count in outcomes.items() if outcome not in _WANTED]
    found += [
        f"{count} large requests: {what}" for what, count in soaked.large.items() if ": 200" not in what
    ]
    first, last = soaked.samples[0], soaked.samples[-1]
    if last.lost or last.waiting or last.in_flight:
        found.append(f"{last.lost} turns lost, {last.waiting} not written, {last.in_flight} not ended")
    found += soaked.ledger.faults[:20]
    if soaked.reloads.unheard:
        found.append(f"{soaked.reloads.unheard} edits of the configuration were not told of")
    if not all(each.is_flat(most_grown) for each in _growths(soaked.samples)):
        found.append(_verdict(soaked.samples, most_grown))
    if last.at - first.at > _TELLING:
        found += _late(soaked)
    if last.files > first.files + FLAT_FILES * soaked.reloads.workers:
        found.append(f"{last.files} files are open, there were {first.files}")
    return found


def _late(soaked: Soaked) -> Iterator[str]:
    """Yields delays that are failures: turns without available memory, and later first tokens."""
    if soaked.unexplained > _MOST_DEGRADED * sum(soaked.crowd.outcomes.values()):
        yield f"{soaked.unexplained} turns went without memory while it was there"
    before, after = _drift(soaked)
    if after > _DRIFT * before + _DRIFT_LEAST:
        yield f"the first token came after {1000 * before:.1f} ms, and then {1000 * after:.1f} ms"


class _Growth(NamedTuple):
    """The memory of the processes of one kind and its growth, in megabytes."""

    kind: str
    megabytes: float
    more: float

    def is_flat(self, most: float) -> bool:
        """Whether it grew by no more than this share, or by a megabyte."""
        return self.more <= max(most * self.megabytes, _LEAST_GROWN)


def _growths(samples: Sequence[Sample]) -> list[_Growth]:
    """Returns the growth of each kind of process in the second half: the median slope between two samples.

    The short peak of a large request does not change the median.
    """
    half = samples[len(samples) // 2 :]
    growths = []
    for kind in _KINDS:
        points = [(one.at, one.megabytes[kind]) for one in half if kind in one.megabytes]
        slopes = [(b - a) / (at - start) for (start, a), (at, b) in combinations(points, 2) if at > start]
        if slopes:
            more = statistics.median(slopes) * (points[-1][0] - points[0][0])
            growths.append(_Growth(kind, statistics.median(value for _, value in points), more))
    return growths


def _verdict(samples: Sequence[Sample], most: float) -> str:
    growths = _growths(samples)
    word = "flat" if all(each.is_flat(most) for each in growths) else "growing"
    grown = ", ".join(f"{each.kind} {each.more:+.1f} of {each.megabytes:.1f} MB" for each in growths)
    return f"memory in the second half: {word} ({grown}; {most:.0%} or {_LEAST_GROWN:.0f} MB are allowed)"


def _drift(soaked: Soaked) -> tuple[float, float]:
    """Returns the median time to the first token, in seconds, in the second third and in the last."""
    firsts: list[First] = soaked.crowd.firsts
    third = len(firsts) // 3
    before, after = firsts[third : 2 * third], firsts[2 * third :]
    return quantile([one.waited for one in before], 0.5), quantile([one.waited for one in after], 0.5)


def draw(soaked: Soaked, file: Path) -> None:
    """Draws memory, the first token and open files over time."""
    from matplotlib import pyplot as plt  # noqa: PLC0415 - an extra, for those who want a picture

    start = soaked.samples[0].at
    minutes = [(sample.at - start) / 60 for sample in soaked.samples]
    figure, (memory, wait, files) = plt.subplots(3, sharex=True, figsize=(9, 8), layout="constrained")
    memory.plot(minutes, [sample.total for sample in soaked.samples])
    memory.set(ylabel="MB", ylim=(0, None))
    rows = list(_rows(soaked, 60))
    for column, label in ((3, "p50"), (4, "p99")):
        wait.plot([float(row[0]) for row in rows], [float(row[column]) for row in rows], label=label)
    wait.set(ylabel="first token, ms", ylim=(0, None))
    wait.legend()
    files.plot(minutes, [sample.files for sample in soaked.samples])
    files.set(ylabel="open files", xlabel="minutes", ylim=(0, None))
    for axis in (memory, wait, files):
        for one in soaked.outages:
            axis.axvspan((one.start - start) / 60, (one.end - start) / 60, color="tab:red", alpha=0.3)
    figure.savefig(file, dpi=120)
