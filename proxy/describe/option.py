"""An option of a filter as its page shows it."""

import json
from collections.abc import Iterator
from typing import Any

import msgspec

from filters import quantity
from proxy.describe.schema import Schema

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
_PATTERNS = {quantity.DURATION: "duration, such as 800ms or 5s", quantity.SIZE: "size, such as 512KB"}
_FORMATS = {"regex": "pattern", "password": "secret text", "uri": "address"}


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
        yield Option(before + name, _kind(each, definitions), default, _help(each, definitions))
        for reference, mark in _nested(each):
            if reference not in seen:
                inner = _resolved({"$ref": reference}, definitions)
                yield from _options(inner, definitions, f"{before}{name}{mark}.", seen | {reference})


def _help(schema: Schema, definitions: Schema) -> str:
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


def _kind(schema: Schema, definitions: Schema) -> str:
    """What one writes, in words."""
    if "$ref" in schema:
        return _kind(_resolved(schema, definitions), definitions)
    if values := schema.get("enum") or ([schema["const"]] if "const" in schema else []):
        return _listed([f"`{value if isinstance(value, str) else json.dumps(value)}`" for value in values])
    if alternatives := schema.get("anyOf") or schema.get("oneOf"):
        kinds = dict.fromkeys(_kind(each, definitions) for each in alternatives)
        return " or ".join(kind for kind in kinds if kind != "whole number" or "number" not in kinds)
    if schema.get("type") == "array":
        return _list(schema, definitions)
    if schema.get("type") == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"{_kind(schema['additionalProperties'], definitions)}, by name"
    return _scalar(schema)


def _list(schema: Schema, definitions: Schema) -> str:
    kind = _kind(schema.get("items", {}), definitions)
    return f"list of {kind}" + (", not empty" if schema.get("minItems") else "")


def _scalar(schema: Schema) -> str:
    if (written := _PATTERNS.get(schema.get("pattern", ""))) is not None:
        return written
    name = _FORMATS.get(schema.get("format", "")) or _NAMES.get(schema.get("type", ""), "anything")
    bounds = [said.format(schema[key]) for key, said in _BOUNDS.items() if key in schema]
    return name if bounds in ([], ["at least 1 long"]) else f"{name}, {' and '.join(bounds)}"


def _listed(values: list[Any]) -> str:
    return " or ".join(filter(None, [", ".join(values[:-1]), values[-1]]))
