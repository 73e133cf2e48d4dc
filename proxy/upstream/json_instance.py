"""Minimal instances of JSON Schemas, for the arguments of a function or for a response format."""

import math
from collections.abc import Mapping
from typing import Any, Final

_MOST: Final = 10_000
_FORMATS: Final = {
    "date": "2000-01-01",
    "date-time": "2000-01-01T00:00:00Z",
    "duration": "PT0S",
    "email": "a@example.com",
    "hostname": "example.com",
    "ipv4": "127.0.0.1",
    "ipv6": "::1",
    "time": "00:00:00Z",
    "uri": "https://example.com",
    "uuid": "00000000-0000-4000-8000-000000000000",
}
_KINDS: Final = {
    "items": "array",
    "maximum": "number",
    "minItems": "array",
    "minLength": "string",
    "minimum": "number",
    "multipleOf": "number",
    "format": "string",
    "pattern": "string",
    "prefixItems": "array",
}

Schema = Mapping[str, Any]
Refs = frozenset[str]


def minimal_instance(schema: object) -> Any:
    """Returns an instance with the required properties, the shortest lists and the first valid alternative.

    Ignores patterns, ``not`` and ``if``. Raises ValueError if there is no instance, or if it has more than
    10,000 values and characters.
    """
    return _Instances(schema).of(schema, frozenset())


class _Instances:
    """Instances of the schemas in one document."""

    def __init__(self, root: object) -> None:
        self._root = root
        self._budget = _MOST

    def of(self, schema: object, refs: Refs) -> Any:
        """Returns an instance of a schema; ``refs`` are the references that lead to it."""
        self._spend(1)
        expanded, refs = self._expand(schema, refs)
        if "const" in expanded:
            return expanded["const"]
        if isinstance(values := expanded.get("enum"), list) and values:
            return values[0]
        for word in ("anyOf", "oneOf"):
            if isinstance(alternatives := expanded.get(word), list) and alternatives:
                rest = {name: value for name, value in expanded.items() if name != word}
                return self._first(rest, alternatives, refs)
        kinds = expanded.get("type")
        kind = kinds[0] if isinstance(kinds, list) and kinds else kinds
        # Without a type, the first keyword that belongs to one type decides.
        match kind or next((_KINDS[name] for name in expanded if name in _KINDS), "object"):
            case "object":
                return self._object(expanded, refs)
            case "array":
                return self._array(expanded, refs)
            case "string":
                count = _count(expanded, "minLength")
                self._spend(count)
                return _FORMATS.get(str(expanded.get("format")), "").ljust(count, "x")
            case "integer" | "number" as kind:
                return _number(expanded, whole=kind == "integer")
            case other:
                return False if other == "boolean" else None

    def _spend(self, count: int) -> None:
        self._budget -= count
        if self._budget < 0:
            raise ValueError(f"an instance has more than {_MOST} values and characters")

    def _expand(self, schema: object, refs: Refs) -> tuple[Schema, Refs]:
        """Returns a schema with its ``$ref`` and ``allOf`` merged into it, and the references so far."""
        if schema is False:
            raise ValueError("a schema that is false takes nothing")
        if not isinstance(schema, dict):
            return {}, refs
        expanded = {name: value for name, value in schema.items() if name not in ("$ref", "allOf")}
        parts = list(schema["allOf"]) if isinstance(schema.get("allOf"), list) else []
        if isinstance(ref := schema.get("$ref"), str):
            if ref in refs:
                raise ValueError(f"{ref} refers to itself without end")
            refs |= {ref}
            parts.append(self._target(ref))
        for part in parts:
            self._spend(1)
            other, refs = self._expand(part, refs)
            expanded = _merged(other, expanded)
        return expanded, refs

    def _target(self, ref: str) -> object:
        target: Any = self._root
        for step in ref.removeprefix("#").split("/")[1:]:
            name = step.replace("~1", "/").replace("~0", "~")
            if isinstance(target, list) and name.isdecimal() and int(name) < len(target):
                target = target[int(name)]
            elif isinstance(target, dict) and name in target:
                target = target[name]
            else:
                raise ValueError(f"{ref} does not exist")
        return target

    def _first(self, rest: Schema, alternatives: list[Any], refs: Refs) -> Any:
        """Returns an instance of the first alternative that has one; raises the last one's ValueError."""
        failure = ValueError("no alternative has an instance")
        for alternative in alternatives:
            try:
                return self.of({"allOf": [alternative, rest]}, refs)
            except ValueError as error:
                failure = error
        raise failure

    def _object(self, schema: Schema, refs: Refs) -> dict[str, Any]:
        properties = schema.get("properties")
        properties = properties if isinstance(properties, dict) else {}
        required = schema.get("required")
        names = [name for name in required if isinstance(name, str)] if isinstance(required, list) else []
        others = schema.get("additionalProperties", True)
        more = _count(schema, "minProperties") - len(names)
        if more > 0:
            self._spend(more)
            optional = [name for name in properties if name not in names]
            names += [*optional, *(f"property{i}" for i in range(more))][:more]
        return {name: self.of(properties.get(name, others), refs) for name in names}

    def _array(self, schema: Schema, refs: Refs) -> list[Any]:
        first, others = schema.get("prefixItems"), schema.get("items", True)
        if isinstance(others, list):  # the form in drafts before 2020-12
            first, others = others, schema.get("additionalItems", True)
        first = first if isinstance(first, list) else []
        count = _count(schema, "minItems")
        self._spend(count)
        return [self.of(first[i] if i < len(first) else others, refs) for i in range(count)]


def _merged(one: Schema, other: Schema) -> dict[str, Any]:
    """Merges two schemas: ``other`` overrides ``one``, but properties and required names are united."""
    merged = {**one, **other}
    for word in ("properties", "required"):
        mine, its = one.get(word), other.get(word)
        if isinstance(mine, dict) and isinstance(its, dict):
            merged[word] = {**mine, **its}
        elif isinstance(mine, list) and isinstance(its, list):
            merged[word] = [*mine, *(name for name in its if name not in mine)]
    return merged


def _number(schema: Schema, *, whole: bool) -> float:
    """Returns 0 if the bounds allow it, else an allowed number at or near the bound closest to 0."""
    step = _bound(schema, "multipleOf") or (1 if whole else 0)
    low, above = _bound(schema, "minimum"), _bound(schema, "exclusiveMinimum")
    high, below = _bound(schema, "maximum"), _bound(schema, "exclusiveMaximum")
    least = max((value for value in (low, above) if value is not None), default=-math.inf)
    most = min((value for value in (high, below) if value is not None), default=math.inf)
    if (
        least < 0 < most
        or (low == 0 and above is None and most >= 0)
        or (high == 0 and below is None and least <= 0)
    ):
        return 0
    bound, way = (least, 1) if least >= 0 else (most, -1)
    is_open = bound in (above, below)
    if not step:
        if not is_open:
            return bound
        other = most if way > 0 else least
        return bound + way if math.isinf(other) else (bound + other) / 2
    steps = bound / step
    count = math.ceil(steps) if way > 0 else math.floor(steps)
    return (count + way if is_open and count == steps else count) * step


def _bound(schema: Schema, name: str) -> float | None:
    value = schema.get(name)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _count(schema: Schema, name: str) -> int:
    value = schema.get(name)
    return value if isinstance(value, int) and value > 0 else 0
