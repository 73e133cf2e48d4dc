"""The results of cases as lines for people."""

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from proxy.trial import diff
from proxy.trial.cases import Failure, Result
from proxy.trial.sheet import Line, line

Results = Mapping[str, Sequence[Result]]
"""What came of the cases of each file."""


def told(results: Results) -> Iterator[Line]:
    """A line for each case, what differs where it fails, and a line that sums up."""
    for file, tried in results.items():
        yield line(file, "bold")
        if not tried:
            yield line("  warning: no cases; write some under 'pipelines.NAME.tests'", "yellow")
        for result in tried:
            yield from _case(result)
    yield _summary([result for tried in results.values() for result in tried])


def _case(result: Result) -> Iterator[Line]:
    name = result.name if result.pipeline == "default" else f"{result.pipeline}: {result.name}"
    if not result.failures:
        yield [("  ✓ ", "green"), (name, "")]
        return
    yield [("  ✗ ", "bold red"), (name, "bold")]
    for failure in result.failures:
        yield line(f"      {failure.what}")
        yield from ([("      ", ""), *each] for each in _difference(failure))


def _difference(failure: Failure) -> Iterator[Line]:
    if isinstance(failure.expected, list) and isinstance(failure.actual, list):
        yield from diff.shown(failure.expected, failure.actual)
    elif isinstance(failure.actual, list) and isinstance(failure.expected, Mapping):
        yield line(f"- {diff.summary(failure.expected)}", "red")
        yield from (line(f"  {diff.summary(each, i)}", "dim") for i, each in enumerate(failure.actual))
    else:
        yield from diff.words("expected", failure.expected, failure.actual, "actual")


def _summary(results: Sequence[Result]) -> Line:
    failed = sum(bool(result.failures) for result in results)
    passed = len(results) - failed
    return line(
        f"{passed} passed, {failed} failed" if failed else f"{passed} passed", "red" if failed else "green"
    )


def encoded(results: Results) -> bytes:
    """The results as JSON: a list, a case each."""
    rows = [{"file": file, **msgspec.to_builtins(r)} for file, tried in results.items() for r in tried]
    return msgspec.json.encode(rows)
