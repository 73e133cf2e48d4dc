"""The pages of filters: docstring, options with their help, and examples; also as Markdown."""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from difflib import SequenceMatcher
from inspect import cleandoc
from typing import Any, Literal

import msgspec
import yaml

from filters import option_types
from filters.base import AnswerFilter, Context, Filter, RequestFilter
from proxy.describe.schema import Schema, model_schema
from proxy.settings.filter_registry import FilterRegistry

Side = Literal["request", "answer"]
KINDS: Mapping[Side, type[Filter]] = {"request": RequestFilter, "answer": AnswerFilter}

_LINE_LENGTH = 100
_NAMES = {
    "string": "text",
    "integer": "integer",
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

TITLES = {"request": "Request filters", "answer": "Answer filters"}


class Option(msgspec.Struct, frozen=True, omit_defaults=True):
    """One option. ``default`` is JSON, or ``None`` for a required option. Names of nested keys have dots."""

    name: str
    kind: str
    default: str | None
    help: str


class ExampleText(msgspec.Struct, frozen=True):
    """An example as text: the step in YAML, its context, and the lines before and after the filter."""

    title: str
    step: str
    context: str = msgspec.field(name="known")
    before: tuple[str, ...]
    after: tuple[str, ...]


class FilterPage(msgspec.Struct, frozen=True):
    """One filter on one side; ``summary`` is the first sentence of its docstring, ``text`` all of it."""

    name: str
    side: Side
    summary: str
    text: str
    options: tuple[Option, ...]
    examples: tuple[ExampleText, ...]


def pages(registry: FilterRegistry) -> tuple[FilterPage, ...]:
    """Returns a page for each filter of a registry: request filters first, by name."""
    return tuple(
        _page(name, side, registry.get(name, kind))
        for side, kind in KINDS.items()
        for name in registry.names(kind)
    )


def _page(name: str, side: Side, kind: Any) -> FilterPage:
    text = cleandoc(kind.__doc__ or "").replace("``", "`")
    examples = []
    # A filter may have no examples.
    for example in getattr(kind, "examples" if side == "request" else "spoken", ()):
        if side == "request":
            before, after = _message_lines(example)
        else:
            before, after = tuple("".join(example.before).splitlines()), tuple(example.after.splitlines())
        step = step_text(name, example.options)
        examples.append(ExampleText(example.title, step, _context_text(example.context), before, after))
    return FilterPage(
        name=name,
        side=side,
        summary=" ".join(text.partition("\n\n")[0].split()),
        text=text,
        options=options(model_schema(kind)),
        examples=tuple(examples),
    )


# --- examples


def step_text(name: str, options: Mapping[str, Any]) -> str:
    """Returns a step of a pipeline in YAML, on one line if it fits."""
    if not options:
        return f"- {name}"
    values = msgspec.to_builtins(options)
    line = f"- {name}: {_yaml(values, flow=True, width=math.inf)}"
    return line if len(line) <= _LINE_LENGTH else _yaml([{name: values}])


def _yaml(value: Any, *, flow: bool | None = None, width: float | None = None) -> str:
    dumped = yaml.safe_dump(value, default_flow_style=flow, sort_keys=False, allow_unicode=True, width=width)
    return str(dumped).rstrip()


def _context_text(context: Context) -> str:
    """Returns the differences from the default context of an example as text."""
    default = Context(now=0.0)
    texts = [
        f"{name} `{_value_text(getattr(context, name))}`"
        for name in ("tenant", "session", "user")
        if getattr(context, name) != getattr(default, name)
    ]
    if context.now != default.now:
        texts.append(datetime.fromtimestamp(context.now, UTC).strftime("%Y-%m-%d %H:%M UTC"))
    return ", ".join(texts)


def _message_lines(example: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the lines of fields and messages before and after; without messages if only fields change."""
    before, after = (
        [f"{name} = {msgspec.json.encode(value).decode()}" for name, value in fields.items()]
        for fields in (getattr(example, "fields", {}), getattr(example, "fields_after", {}))
    )
    if not (before or after) or example.before != example.after:
        before += [line for message in example.before for line in _message_text(message).split("\n")]
        after += [line for message in example.after for line in _message_text(message).split("\n")]
    return tuple(before), tuple(after)


def _message_text(message: Mapping[str, Any]) -> str:
    fields = dict(message)
    role, content = fields.pop("role", "?"), fields.pop("content", None)
    calls, metadata = fields.pop("tool_calls", None) or (), fields.get("metadata")
    marks = ", ".join(
        f"{key} {_value_text(value)}"
        for name, field in fields.items()
        for key, value in (
            metadata.items() if name == "metadata" and isinstance(metadata, dict) else [(name, field)]
        )
    )
    texts = []
    for part in content if isinstance(content, list) else [content]:
        if isinstance(part, str) or part is None:
            texts.append(part or "")
        elif part.get("type") == "text":
            texts.append(f"[text] {part.get('text')}")
        else:
            texts.append(f"[{part.get('type')}]")
    for call in calls:
        function = call.get("function") or {}
        arguments = function.get("arguments", "")
        texts.append(f"[calls {function.get('name', 'a tool')}({arguments}) as {call.get('id')}]")
    text = "\n".join(filter(None, texts))
    return f"{role}{f' ({marks})' if marks else ''}: {text}".rstrip().replace("\n", "\n    ")


def _value_text(value: Any) -> str:
    is_word = isinstance(value, str) and value.split() == [value]
    return str(value) if is_word else msgspec.json.encode(value).decode()


# --- options


def options(schema: Schema) -> tuple[Option, ...]:
    """Returns the options in the schema of a model, each followed by those nested in it."""
    definitions = schema.get("$defs", {})
    return tuple(_options(_resolve(schema, definitions), definitions, "", frozenset()))


def _options(schema: Schema, definitions: Schema, prefix: str, ancestors: frozenset[str]) -> Iterator[Option]:
    required = schema.get("required", [])
    for name, option in schema.get("properties", {}).items():
        default = None if name in required else json.dumps(option.get("default"), ensure_ascii=False)
        # The option's own help text, or else that of the model within it.
        text = option.get("description") or _resolve(option, definitions).get("description", "")
        yield Option(prefix + name, _type_text(option, definitions), default, str(text))
        for reference, mark in _nested(option):
            if reference not in ancestors:
                inner = _resolve({"$ref": reference}, definitions)
                yield from _options(inner, definitions, f"{prefix}{name}{mark}.", ancestors | {reference})


def _nested(schema: Schema, mark: str = "") -> Iterator[tuple[str, str]]:
    """Yields the models within an option, and the path to each: ``[]`` for items, ``.*`` for named values."""
    if "$ref" in schema:
        yield schema["$ref"], mark
    for each in (*schema.get("anyOf", ()), *schema.get("oneOf", ()), *schema.get("allOf", ())):
        yield from _nested(each, mark)
    for key, inner in (("items", "[]"), ("additionalProperties", ".*")):
        if isinstance(schema.get(key), dict):
            yield from _nested(schema[key], mark + inner)


def _resolve(schema: Schema, definitions: Schema) -> Schema:
    name = schema["$ref"].rpartition("/")[2] if "$ref" in schema else None
    return _resolve(definitions[name], definitions) if name in definitions else schema


def _type_text(schema: Schema, definitions: Schema) -> str:
    """Describes the type of a value in words."""
    if "$ref" in schema:
        return _type_text(_resolve(schema, definitions), definitions)
    if values := schema.get("enum") or ([schema["const"]] if "const" in schema else []):
        *most, last = (f"`{value if isinstance(value, str) else json.dumps(value)}`" for value in values)
        return f"{', '.join(most)} or {last}" if most else last
    if alternatives := schema.get("anyOf") or schema.get("oneOf"):
        kinds = dict.fromkeys(_type_text(each, definitions) for each in alternatives)
        return " or ".join(kind for kind in kinds if kind != "integer" or "number" not in kinds)
    if schema.get("type") == "array":
        kind = _type_text(schema.get("items", {}), definitions)
        return f"list of {kind}" + (", not empty" if schema.get("minItems") else "")
    if schema.get("type") == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"{_type_text(schema['additionalProperties'], definitions)}, by name"
    if (written := _PATTERNS.get(schema.get("pattern", ""))) is not None:
        return written
    name = _FORMATS.get(schema.get("format", "")) or _NAMES.get(schema.get("type", ""), "anything")
    bounds = [text.format(schema[key]) for key, text in _BOUNDS.items() if key in schema]
    return name if bounds in ([], ["at least 1 long"]) else f"{name}, {' and '.join(bounds)}"


def filter_reference(page: FilterPage, heading: str = "#") -> str:
    """Returns one page in Markdown, under a heading of this level."""
    lines = [f"{heading} {page.name}", "", f"*{TITLES[page.side][:-1]}.* {page.text}"]
    if page.options:
        lines += ["", "| option | type | default | |", "|---|---|---|---|"]
    for option in page.options:
        default = "*required*" if option.default is None else table_cell(f"`{option.default}`")
        lines.append(
            f"| `{option.name}` | {table_cell(option.kind)} | {default} | {table_cell(option.help)} |"
        )
    for example in page.examples:
        title = f"**{example.title}**" + (f" ({example.context})" if example.context else "")
        lines += ["", title, "", "```yaml", example.step, "```", ""]
        changes = diff(example.before, example.after)
        # The fence must be longer than any run of backticks in the block.
        longest = max((len(run) for line in changes for run in re.findall("`+", line)), default=0)
        fence = "`" * max(3, longest + 1)
        lines += [f"{fence}diff", *changes, fence]
    return "\n".join(lines) + "\n"


def table_cell(text: str) -> str:
    """Returns a text as one cell of a Markdown table."""
    return " ".join(text.split()).replace("|", "\\|")


def diff(before: Sequence[str], after: Sequence[str]) -> list[str]:
    """Returns lines that stay, are removed (``-``) or added (``+``); a changed line is below its old form."""
    lines: list[str] = []
    for _, i, i_end, j, j_end in SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        removed, added = [f"- {line}" for line in before[i:i_end]], [f"+ {line}" for line in after[j:j_end]]
        if before[i:i_end] == after[j:j_end]:
            lines += [f"  {line}" for line in before[i:i_end]]
        elif len(removed) == len(added):
            lines += [line for pair in zip(removed, added, strict=True) for line in pair]
        else:
            lines += [*removed, *added]
    return [line.rstrip() for line in lines]
