"""Explanations and test results as lines: coloured on a terminal, plain and stable everywhere else."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from proxy.trial.explain import Explanation, FilterStep, MessageDict, edits, pieces, value_text
from proxy.trial.testing import Failure, Result

Span = tuple[str, str]
"""A text, and the name of its style in rich."""
StyledLine = Sequence[Span]
Results = Mapping[str, Sequence[Result]]
"""The results of the tests in each file."""

# Terminals obey control characters, and bidirectional marks reorder a text.
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_STYLES = {"-": "red", "+": "green"}


def line(text: str = "", style: str = "") -> StyledLine:
    """Returns a line in one style."""
    return [(text, style)]


def visible(text: str) -> str:
    """Escapes the characters that would affect a terminal, as in JSON."""
    return _UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def plain(lines: Iterable[StyledLine]) -> str:
    """Returns the lines as text without styles."""
    return "".join("".join(visible(text) for text, _ in each).rstrip() + "\n" for each in lines)


# --- explanations


def render_explanation(explanation: Explanation, *, timed: bool = False) -> Iterator[StyledLine]:
    """Renders an explanation, from the call's ids to the body upstream; ``timed`` adds each filter's time."""
    to, identity = explanation.destination, explanation.identity
    heading = f"pipeline {explanation.pipeline} -> upstream {to.upstream} ({to.kind}), model {to.model}"
    yield line(heading, "bold")
    for name, value, place in (
        ("session", identity.session, identity.session_from),
        ("user", identity.user, identity.user_from),
    ):
        yield line(f"{name}: none" if value is None else f"{name}: {value} (from {place})")
    yield line(f"tenant: {identity.tenant}")
    if identity.background:
        yield line("background: yes (no memory)")
    for name in explanation.ignored:
        yield line(f"ignored: {name} (cannot be used)", "yellow")
    if explanation.memory == "left out":
        yield line("memory: left out, and its tools (a server reads it at POST /v1/explain)", "yellow")
    yield line(f"messages: {len(explanation.messages)}")
    for number, step in enumerate(explanation.steps, 1):
        yield line()
        yield from _render_step(number, step, timed=timed)
    yield line()
    yield line("stripped before sending:" if explanation.stripped else "nothing is stripped", "bold")
    for field in explanation.stripped:
        times = f" ({field.count} times)" if field.count > 1 else ""
        form = f" ({field.form})" if field.form else ""
        yield line(f"  {field.name}{form}{times}: {field.why}")
    yield line()
    if not isinstance(explanation.error, msgspec.UnsetType):
        yield line(f"nothing is sent: {explanation.error['message']}", "red")
        return
    yield line("sent:", "bold")
    body = msgspec.json.format(msgspec.json.encode(explanation.sent), indent=2).decode()
    yield from (line(row) for row in body.split("\n"))


def _render_step(number: int, step: FilterStep, *, timed: bool) -> Iterator[StyledLine]:
    name = f"{number} {step.filter}"
    options = f" {msgspec.json.encode(step.options).decode()}" if step.options else ""
    took = f" ({step.microseconds} µs)" if timed else ""
    if step.failed:
        yield line(f"{name}{options}: failed, and passed over{took}", "yellow")
    if not step.changed:
        yield line(f"{name}{options}: unchanged{took}", "dim")
    elif isinstance(step.before, msgspec.UnsetType) or isinstance(step.after, msgspec.UnsetType):
        yield [(name, "bold"), (f"{options}: fields changed{took}", "")]
    else:
        counts = f"{len(step.before)} -> {len(step.after)} messages"
        yield [(name, "bold"), (f"{options}: {counts}{took}", "")]
        yield from render_diff(step.before, step.after)
    for change in step.fields:
        yield from render_change(change.name, change.before, change.after)


# --- test results


def render_results(results: Results) -> Iterator[StyledLine]:
    """Renders a line for each test, the differences of failed tests, and a summary."""
    failed = passed = 0
    for file, of_file in results.items():
        yield line(file, "bold")
        if not of_file:
            yield line("  warning: no cases; write some under 'pipelines.NAME.tests'", "yellow")
        for result in of_file:
            name = result.name if result.pipeline == "default" else f"{result.pipeline}: {result.name}"
            failed, passed = failed + bool(result.failures), passed + (not result.failures)
            if not result.failures:
                yield [("  ✓ ", "green"), (name, "")]
                continue
            yield [("  ✗ ", "bold red"), (name, "bold")]
            for failure in result.failures:
                yield line(f"      {failure.what}")
                yield from ([("      ", ""), *each] for each in _render_failure(failure))
    yield line(f"{passed} passed, {failed} failed", "red") if failed else line(f"{passed} passed", "green")


def _render_failure(failure: Failure) -> Iterator[StyledLine]:
    if isinstance(failure.expected, list) and isinstance(failure.actual, list):
        yield from render_diff(failure.expected, failure.actual)
    elif isinstance(failure.actual, list) and isinstance(failure.expected, Mapping):
        yield line(f"- {message_summary(failure.expected)}", "red")
        yield from (line(f"  {message_summary(each, i)}", "dim") for i, each in enumerate(failure.actual))
    else:
        yield from render_change("expected", failure.expected, failure.actual, "actual")


def encode_results(results: Results) -> bytes:
    """Encodes the results as a JSON list, with an object for each test."""
    rows = [
        {"file": file, **msgspec.to_builtins(result)}
        for file, of_file in results.items()
        for result in of_file
    ]
    return msgspec.json.encode(rows)


# --- differences


def render_diff(before: Sequence[MessageDict], after: Sequence[MessageDict]) -> Iterator[StyledLine]:
    """Renders the edits from ``before`` to ``after``; unchanged messages are only counted."""
    for edit in edits(before, after):
        if edit.kind == "same":
            messages = "message" if edit.count == 1 else "messages"
            yield line(f"  … {edit.count} {messages} unchanged", "dim")
        elif edit.kind == "changed":
            old, new = before[edit.before], after[edit.after]
            moved = "" if edit.before == edit.after else f" -> [{edit.after}]"
            yield line(f"~ [{edit.before}]{moved} {new.get('role', '?')}", "yellow")
            for name in {**old, **new}:
                value, new_value = old.get(name, msgspec.UNSET), new.get(name, msgspec.UNSET)
                if value != new_value:
                    yield from render_change(name, value, new_value)
        elif edit.kind == "removed":
            yield line(f"- {message_summary(before[edit.before], edit.before)}", _STYLES["-"])
        else:
            yield line(f"+ {message_summary(after[edit.after], edit.after)}", _STYLES["+"])


def message_summary(message: MessageDict, position: int | None = None) -> str:
    """A message on one line: position, role, content, name, and tool calls or the id of one."""
    words = [] if position is None else [f"[{position}]"]
    words.append(str(message.get("role", "?")))
    if "content" in message:
        words.append(value_text(message["content"]))
    rest = {name: message[name] for name in ("name", "tool_calls", "tool_call_id") if message.get(name)}
    return " ".join([*words, value_text(rest)] if rest else words)


def render_change(name: str, before: object, after: object, after_name: str = "") -> Iterator[StyledLine]:
    """Renders a value before and after, a line each, and highlights different words; none for ``UNSET``."""
    old, new = value_text(before), value_text(after)
    steps = pieces(old, new) if old and new else None
    if steps is None:
        steps = [("removed", old), ("added", new)]
        highlight = ""
    else:
        highlight = "bold reverse "
    for sign, label, text, other in (("-", name, old, "added"), ("+", after_name or name, new, "removed")):
        style = _STYLES[sign]
        if text:
            spans = [
                (piece, style if kind == "same" else highlight + style)
                for kind, piece in steps
                if kind != other
            ]
            yield [(f"  {sign} {label}: ", style), *spans]
