"""The JSON Schema of a whole configuration, by which an editor completes it and underlines what is wrong."""

from typing import Any

from pydantic import ValidationError

from filters.base import AnswerFilter, Filter, RequestFilter
from proxy.configuration.settings import Settings
from proxy.configuration.shelf import Shelf
from proxy.describe.schema import Schema, lenient, of_model

_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def schema(shelf: Shelf) -> Schema:
    """The schema of configurations with the filters of a shelf; it takes whatever the loader takes."""
    whole = lenient(of_model(Settings))
    definitions = whole.pop("$defs")
    for kind in (RequestFilter, AnswerFilter):
        found = {name: shelf.named(name, kind) for name in shelf.names(kind)}
        places = {name: f"{kind.__name__}.{name}" for name in found}
        definitions |= {places[name]: _options(each, places[name]) for name, each in found.items()}
        definitions[kind.__name__] = _step(found, places)
    return {"$schema": _DIALECT, "title": "A configuration of Turnkeeper", **whole, "$defs": definitions}


def _options(found: type[Filter], place: str) -> Schema:
    return lenient(of_model(found, f"#/$defs/{place}"))


def _step(found: dict[str, type[Filter]], places: dict[str, str]) -> Schema:
    """A name, or an object of one name; never alternatives, for which no message would be to the point."""
    bare = [name for name, each in found.items() if _needs_nothing(each)]
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


def _needs_nothing(found: type[Filter]) -> bool:
    try:
        found()
    except ValidationError:
        return False
    except Exception:  # noqa: BLE001 - a user's check may raise anything
        return False
    return True
