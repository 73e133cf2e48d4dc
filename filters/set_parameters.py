from collections.abc import Mapping
from functools import cached_property
from itertools import combinations
from typing import Annotated, Any, ClassVar, Self

import msgspec
from msgspec import Raw
from pydantic import AfterValidator, ConfigDict, Field, JsonValue, model_validator

from filters.base import Context, Example, Fields, RequestFilter
from filters.option_types import Bound

_NULL = b"null"
_WHY_NOT = {
    "messages": "the messages are what the other filters work on",
    "stream": "the client waits for the kind of answer that it asked for",
}


def _may_be_set(name: str) -> str:
    if name in _WHY_NOT:
        raise ValueError(f"'{name}' cannot be set here: {_WHY_NOT[name]}")
    return name


Name = Annotated[str, AfterValidator(_may_be_set)]


class SetParameters(RequestFilter):
    """Set other fields of the request: temperature, limits, the model.

    A name may stand in one option only, except that one in ``default`` may also stand in ``at_most``. A field
    that the upstream does not take is not sent, even if a step sets it. A ``model`` that the pipeline or its
    upstream names has priority over one that is set here. ``messages`` and ``stream`` cannot be set: the
    other steps work on the messages, and the client waits for the kind of answer that it requested.
    """

    model_config = ConfigDict(serialize_by_alias=True)

    fixed: Mapping[Name, JsonValue] = Field(default_factory=dict, alias="set")
    """Fields that are set in every request, such as ``{temperature: 0.3}``."""

    default: Mapping[Name, JsonValue] = Field(default_factory=dict)
    """Fields that are set if the client did not send them, or sent ``null``."""

    remove: tuple[Name, ...] = ()
    """Fields that are removed, such as ``[logit_bias]``."""

    at_most: Mapping[Name, Bound] = Field(default_factory=dict)
    """The maximum of a field, such as ``{max_tokens: 300}``. A field that was not sent is not added."""

    examples: ClassVar[tuple[Example, ...]] = (
        Example(
            "A voice agent answers briefly",
            {"set": {"temperature": 0.3}, "at_most": {"max_tokens": 300}, "remove": ["logprobs"]},
            before=[{"role": "user", "content": "Hi."}],
            after=[{"role": "user", "content": "Hi."}],
            fields={"model": "large", "temperature": 1, "max_tokens": 4000, "logprobs": True},
            fields_after={"model": "large", "temperature": 0.3, "max_tokens": 300},
        ),
        Example(
            "A default for a field that the client did not send",
            {"default": {"max_tokens": 200, "reasoning_effort": "low"}, "at_most": {"max_tokens": 300}},
            before=[{"role": "user", "content": "Hi."}],
            after=[{"role": "user", "content": "Hi."}],
            fields={"model": "large", "max_tokens": 250, "reasoning_effort": None},
            fields_after={"model": "large", "max_tokens": 250, "reasoning_effort": "low"},
        ),
    )

    @model_validator(mode="after")
    def _does_something(self) -> Self:
        named = {"set": self.fixed, "default": self.default, "remove": self.remove, "at_most": self.at_most}
        if not any(named.values()):
            raise ValueError("say what to set: 'set', 'default', 'remove' or 'at_most'")
        for one, other in combinations(named, 2):
            both = set(named[one]) & set(named[other])
            if both and (one, other) != ("default", "at_most"):
                raise ValueError(f"'{min(both)}' stands in '{one}' and in '{other}'")
        self._raw  # noqa: B018 - made now rather than in the first call
        return self

    @cached_property
    def _raw(self) -> tuple[Fields, Fields, Fields]:
        return _encoded(self.fixed), _encoded(self.default), _encoded(self.at_most)

    def set(self, fields: Fields, context: Context) -> Fields:
        """Returns the fields, changed by the options."""
        fixed, default, most = self._raw
        changed = {name: raw for name, raw in fixed.items() if fields.get(name) != raw}
        missing = [name for name in default if bytes(fields.get(name, _NULL)).strip() == _NULL]
        changed |= {name: default[name] for name in missing}
        for name, bound in self.at_most.items():
            if _exceeds(changed.get(name, fields.get(name)), bound):
                changed[name] = most[name]
        gone = [name for name in self.remove if name in fields]
        if not (changed or gone):
            return fields
        return {name: raw for name, raw in {**fields, **changed}.items() if name not in gone}


def _encoded(values: Mapping[str, Any]) -> Fields:
    return {name: Raw(msgspec.json.encode(value)) for name, value in values.items()}


def _exceeds(raw: Raw | None, bound: float) -> bool:
    """Whether a field is a number above the bound; anything else is left for the upstream to refuse."""
    try:
        return raw is not None and msgspec.json.decode(raw, type=int | float) > bound
    except msgspec.DecodeError:
        return False
