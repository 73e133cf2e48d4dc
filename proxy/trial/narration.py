"""An explanation as lines for people."""

from collections.abc import Iterator

import msgspec

from proxy.trial import diff
from proxy.trial.explanation import Explanation, Step, Whose
from proxy.trial.sheet import Line, line
from proxy.trial.stripping import Stripped

_HEAD = "bold"


def narrated(told: Explanation, *, timed: bool = False) -> Iterator[Line]:
    """What happened to a call, from its reading to its sending; ``timed`` says how long each filter took."""
    to = told.destination
    yield line(f"pipeline {told.pipeline} -> upstream {to.upstream} ({to.kind}), model {to.model}", _HEAD)
    yield from _introduced(told.whose)
    for name in told.ignored:
        yield line(f"ignored: {name} (cannot be used)", "yellow")
    if told.memory == "left out":
        yield line("memory: left out, and its tools (a server reads it at POST /v1/explain)", "yellow")
    yield line(f"messages: {len(told.messages)}")
    for number, step in enumerate(told.steps, 1):
        yield from _step(number, step, timed=timed)
    yield from _stripping(told.stripped)
    yield line()
    yield line("sent:", _HEAD)
    body = msgspec.json.format(msgspec.json.encode(told.sent), indent=2).decode()
    yield from (line(row) for row in body.split("\n"))


def _introduced(whose: Whose) -> Iterator[Line]:
    yield line(f"session: {_found(whose.session, whose.session_from)}")
    yield line(f"user: {_found(whose.user, whose.user_from)}")
    yield line(f"tenant: {whose.tenant}")
    if whose.background:
        yield line("background: yes (no memory)")


def _found(who: str | None, place: str | None) -> str:
    return "none" if who is None else f"{who} (from {place})"


def _step(number: int, step: Step, *, timed: bool) -> Iterator[Line]:
    options = f" {msgspec.json.encode(step.options).decode()}" if step.options else ""
    took = f" ({step.microseconds} µs)" if timed else ""
    yield line()
    if step.failed:
        yield line(f"{number} {step.filter}{options}: failed, and passed over{took}", "yellow")
    if not step.changed:
        yield line(f"{number} {step.filter}{options}: unchanged{took}", "dim")
        return
    yield [(f"{number} {step.filter}", _HEAD), (f"{options}: {_counted(step)}{took}", "")]
    if not isinstance(step.before, msgspec.UnsetType) and not isinstance(step.after, msgspec.UnsetType):
        yield from diff.shown(step.before, step.after)
    for change in step.fields:
        yield from diff.words(change.name, change.before, change.after)


def _counted(step: Step) -> str:
    if isinstance(step.before, msgspec.UnsetType) or isinstance(step.after, msgspec.UnsetType):
        return "fields changed"
    return f"{len(step.before)} -> {len(step.after)} messages"


def _stripping(stripped: tuple[Stripped, ...]) -> Iterator[Line]:
    yield line()
    yield line("not sent as it came:" if stripped else "everything is sent as it is", _HEAD)
    for each in stripped:
        times = f" ({each.count} times)" if each.count > 1 else ""
        form = f" ({each.form})" if each.form else ""
        yield line(f"  {each.name}{form}{times}: {each.why}")
