"""What a model of pydantic's takes, as JSON Schema: once for people, once as strict as the loader is."""

from collections.abc import Callable
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
_LOADED_ALIKE = {"date-time", "date", "time", "duration"}
_OF_TEXT = ("minLength", "maxLength", "pattern")
_VARIABLE = {"type": "string", "pattern": r"\$"}
_NUMBER = r"[0-9]|[iI][nN][fF]|[nN][aA][nN]|\$"
_TRUTH = (
    r"^([01]|[tT]([rR][uU][eE])?|[fF]([aA][lL][sS][eE])?|[yY]([eE][sS])?|[nN][oO]?|[oO]([nN]|[fF][fF]))$|\$"
)
_WORDS = {"ge": "minimum", "le": "maximum", "gt": "exclusiveMinimum", "lt": "exclusiveMaximum"}
_RELAXED = {"oneOf": "anyOf"}  # made lenient, more than one may fit
_TOO_STRICT = {"uniqueItems", "discriminator"}
_SCHEMAS = ("items", "additionalProperties", "propertyNames", "contains", "not")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_MAPS = ("properties", "patternProperties", "$defs")
_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def model_schema(model: type[BaseModel], root: str = "#") -> Schema:
    """The schema of a model as its author wrote it; ``root`` is where it will stand in a document."""
    template = f"{root}/$defs/{{model}}"
    made = model.model_json_schema(ref_template=template, schema_generator=_Generator)
    return map_schema(made, _plain)


def map_schema(schema: Schema, change: Callable[[Schema], Schema]) -> Schema:
    """The schema with each schema in it changed, from the innermost outwards."""
    return change({key: _inside(key, value, change) for key, value in schema.items()})


def lenient(schema: Schema) -> Schema:
    """The same schema, for text in which ``${NAME}`` may stand, and for all that pydantic makes values of.

    What a ``$`` leads to is unknown, so it passes everywhere where text is read. Numbers and truth values
    may be written as text. Conditions instead of alternatives keep an editor's messages to the point.
    """
    return map_schema(schema, _lenient)


def _inside(key: str, value: Any, change: Callable[[Schema], Schema]) -> Any:
    if key in _SCHEMAS and isinstance(value, dict):
        return map_schema(value, change)
    if key in _LISTS:
        return [map_schema(each, change) for each in value]
    return {name: map_schema(each, change) for name, each in value.items()} if key in _MAPS else value


def _plain(schema: Schema) -> Schema:
    """The schema in the words of JSON Schema, and of Markdown, with defaults as one would write them."""
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
        return _choice(loose)
    match loose.get("type"):
        case "string":
            return _text(loose)
        case "integer" | "number" as kind:
            return {**loose, "type": [kind, "string", "boolean"], "pattern": _NUMBER}
        case "boolean":
            truth = {"type": ["boolean", "string", "integer"], "pattern": _TRUTH, "minimum": 0, "maximum": 1}
            return {**loose, **truth}
    return loose


def _choice(schema: Schema) -> Schema:
    values = schema.pop("enum", None) or [schema.pop("const")]
    schema.pop("type", None)
    return {**schema, "if": _VARIABLE, "else": {"enum": values}}


def _text(schema: Schema) -> Schema:
    if schema.get("format") in _LOADED_ALIKE:
        return {**schema, "type": ["string", "number"]}
    limits = {key: schema.pop(key) for key in _OF_TEXT if key in schema}
    return {**schema, "if": {"pattern": r"\$"}, "else": limits} if limits else schema


class _Generator(GenerateJsonSchema):
    """Pydantic's own, less titles; what a function takes that runs before the check is anyone's guess."""

    ignored_warning_kinds: set[JsonSchemaWarningKind] = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002 - the interface
        return False

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> Schema:
        if "default_factory" in schema and not schema.get("default_factory_takes_data"):
            made: Any = schema["default_factory"]()  # type: ignore[call-arg]
            schema = {**schema, "default": dict(made) if isinstance(made, MappingProxyType) else made}
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
        taken = schema.get("json_schema_input_schema")
        return self.generate_inner(taken) if taken else {}


def settings_schema(shelf: FilterRegistry) -> Schema:
    """The schema of configurations with the filters of a shelf; it takes whatever the loader takes."""
    whole = lenient(model_schema(Settings))
    definitions = whole.pop("$defs")
    for kind in (RequestFilter, AnswerFilter):
        found = {name: shelf.get(name, kind) for name in shelf.names(kind)}
        places = {name: f"{kind.__name__}.{name}" for name in found}
        definitions |= {places[name]: _options(each, places[name]) for name, each in found.items()}
        definitions[kind.__name__] = _step(found, places)
    return {"$schema": _DIALECT, "title": "A configuration of Turnkeeper", **whole, "$defs": definitions}


def _options(found: type[Filter], place: str) -> Schema:
    return lenient(model_schema(found, f"#/$defs/{place}"))


def _step(found: dict[str, type[Filter]], places: dict[str, str]) -> Schema:
    """A name, or an object of one name; never alternatives, for which no message would be to the point."""
    bare = [name for name, each in found.items() if _has_defaults(each)]
    properties: dict[str, Any] = {name: _given(places[name], name in bare) for name in found}
    one = {"type": "object", "properties": properties, "minProperties": 1, "maxProperties": 1}
    return {
        "if": {"type": "string"},
        "then": {"if": {"pattern": r"\$"}, "else": {"enum": bare}},
        "else": {**one, "additionalProperties": False},
    }


def _given(place: str, may_be_empty: bool) -> Schema:  # noqa: FBT001
    options = {"$ref": f"#/$defs/{place}"}
    return {"if": {"type": "null"}, "else": options} if may_be_empty else options


def _has_defaults(found: type[Filter]) -> bool:
    try:
        found()
    except ValidationError:
        return False
    except Exception:  # noqa: BLE001 - a user's check may raise anything
        return False
    return True
