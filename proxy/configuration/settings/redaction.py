"""What must never be stored."""

from collections.abc import Mapping
from functools import cached_property
from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING, Annotated, Final, Self, get_args

from pydantic import Field, model_validator

from filters.number import Whole
from filters.template import template_with
from filters.text.pattern import OwnPattern
from filters.text.personal import Kind
from proxy.configuration.part import Part

if TYPE_CHECKING:
    from filters.redact import Redact

# Hardly anybody sets this: the filter is loaded by who does.
_REDACT: Final = EntryPoint("redact", "filters.redact:Redact", "turnkeeper.filters")


class Redaction(Part):
    """What never reaches a store; the filter ``redact`` has the same names for it."""

    kinds: tuple[Kind, ...] = get_args(Kind)
    """What is looked for; left out, all of these."""
    patterns: Mapping[str, OwnPattern] = Field(default_factory=dict)
    """Further kinds by name, as patterns of RE2: ``{order: "ORD-[0-9]+"}``."""
    max_length: Annotated[Whole, Field(ge=1, le=1024)] = 64
    """How many characters a match of ``patterns`` may have."""
    template: Annotated[str, template_with("kind")] = "[{kind}]"
    """What stands in its place: ``{kind}`` is filled in."""

    @model_validator(mode="after")
    def _does_something(self) -> Self:
        marking = self.marking
        found = next((mark for mark in marking.marks.values() if marking.text(mark) != mark), None)
        if found is not None:
            raise ValueError(f"the mark '{found}' would be found itself; choose another 'template' or name")
        return self

    @cached_property
    def marking(self) -> "Redact":
        """What finds and marks it."""
        redact: type[Redact] = _REDACT.load()
        return redact(
            kinds=self.kinds, patterns=self.patterns, max_length=self.max_length, template=self.template
        )
