"""What a run has tried: a test notes each fault with what came of it, and the end of the run shows all."""

from collections.abc import Callable, Iterable, Iterator
from itertools import groupby

import pytest

Tried = Callable[[str, str], None]
_NAME = "fault"


def noting(test: pytest.Item) -> Tried:
    """What notes a fault beside a test; a report carries it, from another process too."""
    return lambda fault, outcome: test.user_properties.append((_NAME, [fault, outcome]))


def table(reports: Iterable[pytest.TestReport]) -> list[str]:
    """Lines for all that was noted, under the file that tried it."""
    rows = dict.fromkeys(
        (report.location[0], *noted)
        for report in reports
        for name, noted in report.user_properties
        if name == _NAME
    )
    return list(_lines(sorted(rows, key=lambda row: row[0])))


def _lines(rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    for file, tried in groupby(rows, key=lambda row: row[0]):
        yield ""
        yield file
        for _, fault, outcome in tried:
            yield f"  {fault:44} {outcome}"
