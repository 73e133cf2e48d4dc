"""An option of a filter as its page shows it."""

import json
import math
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from inspect import cleandoc
from typing import Any, Literal

import msgspec
import yaml

from filters import option_types
from filters.base import AnswerFilter, Context, Filter, RequestFilter
from proxy.describe.schema import Schema, model_schema
from proxy.settings.filter_registry import FilterRegistry

_NAMES = {
    "string": "text",
    "integer": "whole number",
    "number": "number",
    "boolean": "true or false",
    "null": "nothing",
    "object": "keys and values",
}
_BOUNDS = {
    "minimum": "at least {}",
    "exclusiveMinimum": "above {}",
    "maximum": "at most {}",
    "exclusiveMaximum": "below {}",
    "minLength": "at least {} long",
    "maxLength": "at most {} long",
}
_PATTERNS = {option_types.DURATION: "duration, such as 800ms or 5s", option_types.SIZE: "size, such as 512KB"}
_FORMATS = {"regex": "pattern", "password": "secret text", "uri": "address"}
Side = Literal["request", "answer"]
_LINE = 100


class Option(msgspec.Struct, frozen=True, omit_defaults=True):
    """One key. ``default`` is JSON; ``None`` where the option must be given. Nested keys have dots."""

    name: str
    kind: str
    default: str | None
    help: str


def options(schema: Schema) -> tuple[Option, ...]:
    """The options that the schema of a filter tells of, each followed by what is nested in it."""
    definitions = schema.get("$defs", {})
    return tuple(_options(_resolved(schema, definitions), definitions, "", frozenset()))


def _options(schema: Schema, definitions: Schema, before: str, seen: frozenset[str]) -> Iterator[Option]:
    needed = schema.get("required", [])
    for name, each in schema.get("properties", {}).items():
        default = None if name in needed else json.dumps(each.get("default"), ensure_ascii=False)
        yield Option(before + name, _type_text(each, definitions), default, _help_text(each, definitions))
        for reference, mark in _nested(each):
            if reference not in seen:
                inner = _resolved({"$ref": reference}, definitions)
                yield from _options(inner, definitions, f"{before}{name}{mark}.", seen | {reference})


def _help_text(schema: Schema, definitions: Schema) -> str:
    """What an option says of itself, else what is said of all that it may hold."""
    said = schema.get("description") or _resolved(schema, definitions).get("description", "")
    return str(said)


def _nested(schema: Schema, mark: str = "") -> Iterator[tuple[str, str]]:
    """The models within an option, and how they are reached: ``[]`` for items, ``.*`` for values by name."""
    if "$ref" in schema:
        yield schema["$ref"], mark
    for each in (*schema.get("anyOf", ()), *schema.get("oneOf", ()), *schema.get("allOf", ())):
        yield from _nested(each, mark)
    for key, inner in (("items", "[]"), ("additionalProperties", ".*")):
        if isinstance(schema.get(key), dict):
            yield from _nested(schema[key], mark + inner)


def _resolved(schema: Schema, definitions: Schema) -> Schema:
    name = schema["$ref"].rpartition("/")[2] if "$ref" in schema else None
    return _resolved(definitions[name], definitions) if name in definitions else schema


def _type_text(schema: Schema, definitions: Schema) -> str:
    """What one writes, in words."""
    if "$ref" in schema:
        return _type_text(_resolved(schema, definitions), definitions)
    if values := schema.get("enum") or ([schema["const"]] if "const" in schema else []):
        return _listed([f"`{value if isinstance(value, str) else json.dumps(value)}`" for value in values])
    if alternatives := schema.get("anyOf") or schema.get("oneOf"):
        kinds = dict.fromkeys(_type_text(each, definitions) for each in alternatives)
        return " or ".join(kind for kind in kinds if kind != "whole number" or "number" not in kinds)
    if schema.get("type") == "array":
        return _list(schema, definitions)
    if schema.get("type") == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"{_type_text(schema['additionalProperties'], definitions)}, by name"
    return _scalar(schema)


def _list(schema: Schema, definitions: Schema) -> str:
    kind = _type_text(schema.get("items", {}), definitions)
    return f"list of {kind}" + (", not empty" if schema.get("minItems") else "")


def _scalar(schema: Schema) -> str:
    if (written := _PATTERNS.get(schema.get("pattern", ""))) is not None:
        return written
    name = _FORMATS.get(schema.get("format", "")) or _NAMES.get(schema.get("type", ""), "anything")
    bounds = [said.format(schema[key]) for key, said in _BOUNDS.items() if key in schema]
    return name if bounds in ([], ["at least 1 long"]) else f"{name}, {' and '.join(bounds)}"


def _listed(values: list[Any]) -> str:
    return " or ".join(filter(None, [", ".join(values[:-1]), values[-1]]))


KINDS: Mapping[Side, type[Filter]] = {"request": RequestFilter, "answer": AnswerFilter}


class ShownExample(msgspec.Struct, frozen=True):
    """An example: the step as YAML has it, what it knows, and what goes in and comes out, line by line."""

    title: str
    step: str
    known: str
    before: tuple[str, ...]
    after: tuple[str, ...]


class FilterPage(msgspec.Struct, frozen=True):
    """One filter on one side; ``summary`` is the first sentence, ``text`` all that its docstring says."""

    name: str
    side: Side
    summary: str
    text: str
    options: tuple[Option, ...]
    examples: tuple[ShownExample, ...]


def pages(shelf: FilterRegistry) -> tuple[FilterPage, ...]:
    """A page for every filter of a shelf: those of the request first, by name."""
    return tuple(
        _page(name, side, shelf.get(name, kind)) for side, kind in KINDS.items() for name in shelf.names(kind)
    )


def _page(name: str, side: Side, found: type[Filter]) -> FilterPage:
    text = _markdown(found.__doc__ or "")
    return FilterPage(
        name=name,
        side=side,
        summary=" ".join(text.partition("\n\n")[0].split()),
        text=text,
        options=options(model_schema(found)),
        examples=tuple(_examples(name, found, side)),
    )


def _examples(name: str, found: Any, side: Side) -> Iterator[ShownExample]:
    """What its author shows; a class without examples of its own has none."""
    for each in getattr(found, "examples" if side == "request" else "spoken", ()):
        before, after = _said(each) if side == "answer" else _sent(each)
        yield ShownExample(each.title, step_of(name, each.options), _known(each.context), before, after)


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
