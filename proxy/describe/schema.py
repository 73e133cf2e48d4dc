"""JSON Schemas of pydantic models: as written, for readers, or as lenient as the loader, for editors."""

import ast
import inspect
from collections.abc import Callable, Iterator
from itertools import pairwise
from textwrap import dedent
from types import MappingProxyType
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaWarningKind
from pydantic_core import core_schema

from filters import option_types
from filters.base import AnswerFilter, Filter, RequestFilter
from proxy.settings.filter_registry import FilterRegistry
from proxy.settings.settings import Settings

Schema = dict[str, Any]

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_LOADED_ALIKE = {"date-time", "date", "time", "duration"}
_OF_TEXT = ("minLength", "maxLength", "pattern")
_VARIABLE = {"type": "string", "pattern": r"\$"}
_NUMBER = r"[0-9]|[iI][nN][fF]|[nN][aA][nN]|\$"
_TRUTH = (
    r"^([01]|[tT]([rR][uU][eE])?|[fF]([aA][lL][sS][eE])?|[yY]([eE][sS])?|[nN][oO]?|[oO]([nN]|[fF][fF]))$|\$"
)
_WORDS = {"ge": "minimum", "le": "maximum", "gt": "exclusiveMinimum", "lt": "exclusiveMaximum"}
_RELAXED = {"oneOf": "anyOf"}  # more than one lenient alternative may match
_TOO_STRICT = {"uniqueItems", "discriminator"}
_SCHEMAS = ("items", "additionalProperties", "propertyNames", "contains", "not")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_MAPS = ("properties", "patternProperties", "$defs")


def settings_schema(registry: FilterRegistry) -> Schema:
    """Returns the schema of a whole configuration with the filters of a registry, for editors."""
    whole = lenient(model_schema(Settings))
    definitions = whole.pop("$defs")
    for kind in (RequestFilter, AnswerFilter):
        steps: dict[str, Schema] = {}
        bare = []
        for name in registry.names(kind):
            place, step = f"{kind.__name__}.{name}", registry.get(name, kind)
            definitions[place] = lenient(model_schema(step, f"#/$defs/{place}"))
            steps[name] = {"$ref": f"#/$defs/{place}"}
            if _has_defaults(step):
                bare.append(name)
                steps[name] = {"if": {"type": "null"}, "else": steps[name]}
        # A name, or an object with one name. Conditions give clearer messages in editors than alternatives.
        one = {"type": "object", "properties": steps, "minProperties": 1, "maxProperties": 1}
        definitions[kind.__name__] = {
            "if": {"type": "string"},
            "then": {"if": {"pattern": r"\$"}, "else": {"enum": bare}},
            "else": {**one, "additionalProperties": False},
        }
    return {"$schema": _DIALECT, "title": "A configuration of Turnkeeper", **whole, "$defs": definitions}


def _has_defaults(kind: type[Filter]) -> bool:
    try:
        kind()
    except ValidationError:
        return False
    except Exception:  # noqa: BLE001 - a user's check may raise anything
        return False
    return True


# --- models


def model_schema(model: type[BaseModel], root: str = "#") -> Schema:
    """Returns the schema of a model as its author wrote it; ``root`` is its place in a document."""
    template = f"{root}/$defs/{{model}}"
    schema = model.model_json_schema(ref_template=template, schema_generator=_Generator)
    return map_schema(schema, _plain)


def map_schema(schema: Schema, change: Callable[[Schema], Schema]) -> Schema:
    """Returns the schema with ``change`` applied to each schema in it, from the innermost outwards."""
    changed: Schema = {}
    for key, value in schema.items():
        changed[key] = value
        if key in _SCHEMAS and isinstance(value, dict):
            changed[key] = map_schema(value, change)
        elif key in _LISTS:
            changed[key] = [map_schema(each, change) for each in value]
        elif key in _MAPS:
            changed[key] = {name: map_schema(each, change) for name, each in value.items()}
    return change(changed)


def lenient(schema: Schema) -> Schema:
    """Returns a schema for everything that the loader accepts.

    A text with ``$`` may stand for any value, so it is always valid; numbers and booleans may be written as
    text. Conditions give clearer messages in editors than alternatives.
    """
    return map_schema(schema, _lenient)


def _plain(schema: Schema) -> Schema:
    """Returns the schema with JSON Schema's keywords, Markdown, and defaults as they are written in YAML."""
    plain = {_WORDS.get(key, key): value for key, value in schema.items() if key != "title"}
    if "description" in plain:
        plain["description"] = plain["description"].replace("``", "`")
    default = plain.get("default")
    if "$ref" in plain and isinstance(default, dict):
        del plain["default"]
    if plain.get("pattern") == option_types.DURATION and isinstance(default, float | int):
        plain["default"] = option_types.as_duration(default)
    if plain.get("pattern") == option_types.SIZE and isinstance(default, int):
        plain["default"] = option_types.as_size(default)
    return plain


def _lenient(schema: Schema) -> Schema:
    loose = {_RELAXED.get(key, key): value for key, value in schema.items() if key not in _TOO_STRICT}
    if "enum" in loose or "const" in loose:
        values = loose.pop("enum", None) or [loose.pop("const")]
        loose.pop("type", None)
        return {**loose, "if": _VARIABLE, "else": {"enum": values}}
    match loose.get("type"):
        case "string" if loose.get("format") in _LOADED_ALIKE:
            return {**loose, "type": ["string", "number"]}
        case "string":
            limits = {key: loose.pop(key) for key in _OF_TEXT if key in loose}
            return {**loose, "if": {"pattern": r"\$"}, "else": limits} if limits else loose
        case "integer" | "number" as kind:
            return {**loose, "type": [kind, "string", "boolean"], "pattern": _NUMBER}
        case "boolean":
            truth = {"type": ["boolean", "string", "integer"], "pattern": _TRUTH, "minimum": 0, "maximum": 1}
            return {**loose, **truth}
    return loose


def _field_docstrings(kind: type) -> Iterator[tuple[str, str]]:
    """Yields the fields that a class itself declares, with the docstring of each; none without its source.

    Pydantic could read them when the class is created, but that takes a seventh of a server's start.
    """
    try:
        (tree,) = ast.parse(dedent(inspect.getsource(kind))).body
    except (OSError, TypeError, SyntaxError, ValueError):
        return
    for field, below in pairwise(tree.body if isinstance(tree, ast.ClassDef) else ()):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(below, ast.Expr)
            and isinstance(below.value, ast.Constant)
            and isinstance(below.value.value, str)
        ):
            yield field.target.id, inspect.cleandoc(below.value.value)


class _Generator(GenerateJsonSchema):
    """Pydantic's generator without titles, with the docstrings of fields as their descriptions.

    A value that a function converts before its validation may have any type.
    """

    ignored_warning_kinds: set[JsonSchemaWarningKind] = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012

    def model_schema(self, schema: core_schema.ModelSchema) -> Schema:
        described, model = super().model_schema(schema), schema["cls"]
        # BaseModel and its bases have no fields, and their source is long.
        kinds = reversed(model.__mro__[: model.__mro__.index(BaseModel)])
        texts = dict(text for kind in kinds for text in _field_docstrings(kind))
        for name, field in model.model_fields.items():
            key = field.alias or name
            if name in texts and key in described.get("properties", {}):
                described["properties"][key].setdefault("description", texts[name])
        return described

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002 - the interface
        return False

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> Schema:
        if "default_factory" in schema and not schema.get("default_factory_takes_data"):
            default: Any = schema["default_factory"]()  # type: ignore[call-arg]
            schema = {
                **schema,
                "default": dict(default) if isinstance(default, MappingProxyType) else default,
            }
            del schema["default_factory"]
        return super().default_schema(schema)

    def function_before_schema(self, schema: core_schema.BeforeValidatorFunctionSchema) -> Schema:
        return self._input(schema)

    def function_wrap_schema(self, schema: core_schema.WrapValidatorFunctionSchema) -> Schema:
        return self._input(schema)

    def function_plain_schema(self, schema: core_schema.PlainValidatorFunctionSchema) -> Schema:
        return self._input(schema)

    def handle_invalid_for_json_schema(self, schema: Any, error_info: str) -> Schema:  # noqa: ARG002
        return {}

    def _input(self, schema: Any) -> Schema:
        inner = schema.get("json_schema_input_schema")
        return self.generate_inner(inner) if inner else {}
