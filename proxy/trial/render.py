"""Lines for people: with colours for a terminal, plain and always the same everywhere else."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from proxy.trial.diff import Edit, Written, edits, pieces, value_text
from proxy.trial.disclosure import Stripped
from proxy.trial.explain import ExplainedIdentity, Explanation, FilterStep
from proxy.trial.testing import Failure, Result

Span = tuple[str, str]
"""Some text, and rich's name for how it looks."""
# A terminal would act on controls, and bidirectional marks would show a text in another order.
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_HEAD = "bold"
Results = Mapping[str, Sequence[Result]]
"""What came of the cases of each file."""
_STYLES = {"-": "red", "+": "green"}


Line = Sequence[Span]


def line(text: str = "", style: str = "") -> Line:
    """A line that looks the same from end to end."""
    return [(text, style)]


def visible(text: str) -> str:
    """A text that a terminal shows and does not act on; what is unsafe is written as JSON escapes it."""
    return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def plain(lines: Iterable[Line]) -> str:
    """The lines as text without colours, each ended."""
    return "".join("".join(visible(text) for text, _ in each).rstrip() + "\n" for each in lines)


def render_explanation(told: Explanation, *, timed: bool = False) -> Iterator[Line]:
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
        yield from _render_step(number, step, timed=timed)
    yield from _stripping(told.stripped)
    yield line()
    yield line("sent:", _HEAD)
    body = msgspec.json.format(msgspec.json.encode(told.sent), indent=2).decode()
    yield from (line(row) for row in body.split("\n"))


def _introduced(whose: ExplainedIdentity) -> Iterator[Line]:
    yield line(f"session: {_found(whose.session, whose.session_from)}")
    yield line(f"user: {_found(whose.user, whose.user_from)}")
    yield line(f"tenant: {whose.tenant}")
    if whose.background:
        yield line("background: yes (no memory)")


def _found(who: str | None, place: str | None) -> str:
    return "none" if who is None else f"{who} (from {place})"


def _render_step(number: int, step: FilterStep, *, timed: bool) -> Iterator[Line]:
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
        yield from render_diff(step.before, step.after)
    for change in step.fields:
        yield from render_change(change.name, change.before, change.after)


def _counted(step: FilterStep) -> str:
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


def render_results(results: Results) -> Iterator[Line]:
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
        yield from render_diff(failure.expected, failure.actual)
    elif isinstance(failure.actual, list) and isinstance(failure.expected, Mapping):
        yield line(f"- {message_summary(failure.expected)}", "red")
        yield from (line(f"  {message_summary(each, i)}", "dim") for i, each in enumerate(failure.actual))
    else:
        yield from render_change("expected", failure.expected, failure.actual, "actual")


def _summary(results: Sequence[Result]) -> Line:
    failed = sum(bool(result.failures) for result in results)
    passed = len(results) - failed
    return line(
        f"{passed} passed, {failed} failed" if failed else f"{passed} passed", "red" if failed else "green"
    )


def encode_results(results: Results) -> bytes:
    """The results as JSON: a list, a case each."""
    rows = [{"file": file, **msgspec.to_builtins(r)} for file, tried in results.items() for r in tried]
    return msgspec.json.encode(rows)


def render_diff(before: Sequence[Written], after: Sequence[Written]) -> Iterator[Line]:
    """The way from ``before`` to ``after`` as lines; what is the same is counted, not repeated."""
    for edit in edits(before, after):
        if edit.kind == "same":
            messages = "message" if edit.count == 1 else "messages"
            yield line(f"  … {edit.count} {messages} unchanged", "dim")
        elif edit.kind == "changed":
            yield from _render_changed(edit, before[edit.before], after[edit.after])
        elif edit.kind == "removed":
            yield line(f"- {message_summary(before[edit.before], edit.before)}", _STYLES["-"])
        else:
            yield line(f"+ {message_summary(after[edit.after], edit.after)}", _STYLES["+"])


def message_summary(message: Written, position: int | None = None) -> str:
    """A message on one line: where it stands, who speaks, and what."""
    place = [] if position is None else [f"[{position}]"]
    rest = {name: message[name] for name in ("name", "tool_calls", "tool_call_id") if message.get(name)}
    said = [value_text(message["content"])] if "content" in message else []
    return " ".join([*place, str(message.get("role", "?")), *said, *([value_text(rest)] if rest else [])])


def _render_changed(edit: Edit, before: Written, after: Written) -> Iterator[Line]:
    moved = "" if edit.before == edit.after else f" -> [{edit.after}]"
    yield line(f"~ [{edit.before}]{moved} {after.get('role', '?')}", "yellow")
    for name in {**before, **after}:
        one, other = before.get(name, msgspec.UNSET), after.get(name, msgspec.UNSET)
        if one != other:
            yield from render_change(name, one, other)


def render_change(name: str, before: object, after: object, after_name: str = "") -> Iterator[Line]:
    """A value before and after, a line each; words that differ stand out. ``UNSET`` has no line."""
    names = {"-": name, "+": after_name or name}
    one, other = value_text(before), value_text(after)
    old, new = _spans(one, other) if one and other else ([(one, False)], [(other, False)])
    for sign, text, spans in (("-", one, old), ("+", other, new)):
        style = _STYLES[sign]
        if text:
            yield [(f"  {sign} {names[sign]}: ", style), *(_styled(span, style) for span in spans)]


def _styled(span: tuple[str, bool], style: str) -> Span:
    text, differs = span
    return text, f"bold reverse {style}" if differs else style


def _spans(before: str, after: str) -> tuple[list[tuple[str, bool]], list[tuple[str, bool]]]:
    found = pieces(before, after)
    if found is None:
        return [(before, False)], [(after, False)]
    old = [(text, kind != "same") for kind, text in found if kind != "added"]
    new = [(text, kind != "same") for kind, text in found if kind != "removed"]
    return old, new
