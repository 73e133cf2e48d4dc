"""What a filter says of itself: its docstring, its options with their help, its examples."""

import math
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from inspect import cleandoc
from typing import Any, Literal

import msgspec
import yaml

from filters.base import AnswerFilter, Context, Filter, RequestFilter
from proxy.configuration.shelf import Shelf
from proxy.describe.option import Option, options
from proxy.describe.schema import of_model

Side = Literal["request", "answer"]
_LINE = 100
KINDS: Mapping[Side, type[Filter]] = {"request": RequestFilter, "answer": AnswerFilter}


class Shown(msgspec.Struct, frozen=True):
    """An example: the step as YAML has it, what it knows, and what goes in and comes out, line by line."""

    title: str
    step: str
    known: str
    before: tuple[str, ...]
    after: tuple[str, ...]


class Page(msgspec.Struct, frozen=True):
    """One filter on one side; ``summary`` is the first sentence, ``text`` all that its docstring says."""

    name: str
    side: Side
    summary: str
    text: str
    options: tuple[Option, ...]
    examples: tuple[Shown, ...]


def pages(shelf: Shelf) -> tuple[Page, ...]:
    """A page for every filter of a shelf: those of the request first, by name."""
    return tuple(
        _page(name, side, shelf.named(name, kind))
        for side, kind in KINDS.items()
        for name in shelf.names(kind)
    )


def _page(name: str, side: Side, found: type[Filter]) -> Page:
    text = _markdown(found.__doc__ or "")
    return Page(
        name=name,
        side=side,
        summary=" ".join(text.partition("\n\n")[0].split()),
        text=text,
        options=options(of_model(found)),
        examples=tuple(_examples(name, found, side)),
    )


def _examples(name: str, found: Any, side: Side) -> Iterator[Shown]:
    """What its author shows; a class without examples of its own has none."""
    for each in getattr(found, "examples" if side == "request" else "spoken", ()):
        before, after = _said(each) if side == "answer" else _sent(each)
        yield Shown(each.title, step_of(name, each.options), _known(each.context), before, after)


def step_of(name: str, given: Mapping[str, Any]) -> str:
    """A step of a pipeline as one writes it in YAML: on one line where it fits."""
    if not given:
        return f"- {name}"
    options = msgspec.to_builtins(given)
    line = f"- {name}: {_yaml(options, flow=True)}"
    return line if len(line) <= _LINE else _yaml([{name: options}], flow=None)


def _yaml(value: Any, *, flow: bool | None) -> str:
    width = None if flow is None else math.inf
    dumped = yaml.safe_dump(value, default_flow_style=flow, sort_keys=False, allow_unicode=True, width=width)
    return str(dumped).rstrip()


def _sent(example: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Fields and messages; where an example is about fields, messages that stay as they are say nothing."""
    before, after = (_fields(getattr(example, name, {})) for name in ("fields", "fields_after"))
    if not (before or after) or example.before != example.after:
        before += [line for message in example.before for line in _message(message)]
        after += [line for message in example.after for line in _message(message)]
    return tuple(before), tuple(after)


def _fields(fields: Mapping[str, Any]) -> list[str]:
    return [f"{name} = {msgspec.json.encode(value).decode()}" for name, value in fields.items()]


def _said(example: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return tuple("".join(example.before).splitlines()), tuple(example.after.splitlines())


def _message(message: Mapping[str, Any]) -> Iterator[str]:
    marks = dict(message)
    role, content = marks.pop("role", "?"), marks.pop("content", None)
    calls = marks.pop("tool_calls", None) or ()
    known = ", ".join(f"{key} {_value(value)}" for key, value in _flat(marks))
    text = "\n".join(filter(None, [*_parts(content), *map(_call, calls)]))
    first, *rest = f"{role}{f' ({known})' if known else ''}: {text}".rstrip().split("\n")
    return iter([first, *(f"    {line}" for line in rest)])


def _flat(marks: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in marks.items():
        yield from value.items() if key == "metadata" and isinstance(value, dict) else [(key, value)]


def _parts(content: Any) -> Iterator[str]:
    for part in content if isinstance(content, list) else [content]:
        if isinstance(part, str) or part is None:
            yield part or ""
        elif part.get("type") == "text":
            yield f"[text] {part.get('text')}"
        else:
            yield f"[{part.get('type')}]"


def _call(call: Mapping[str, Any]) -> str:
    function = call.get("function") or {}
    name, given = function.get("name", "a tool"), function.get("arguments", "")
    return f"[calls {name}({given}) as {call.get('id')}]"


def _value(value: Any) -> str:
    plain = isinstance(value, str) and value.split() == [value]
    return str(value) if plain else msgspec.json.encode(value).decode()


def _known(context: Context) -> str:
    """What a filter knew beside the messages, where that is not what it always knows."""
    usual = Context(now=0.0)
    names = [name for name in ("tenant", "session", "user") if getattr(context, name) != getattr(usual, name)]
    known = [f"{name} `{_value(getattr(context, name))}`" for name in names]
    time = datetime.fromtimestamp(context.now, UTC).strftime("%Y-%m-%d %H:%M UTC")
    return ", ".join(known if context.now == usual.now else [*known, time])


def _markdown(docstring: str) -> str:
    return cleandoc(docstring).replace("``", "`")
