"""What all parts of a configuration have in common."""

from pydantic import BaseModel, ConfigDict


class Part(BaseModel):
    """A part of the configuration: it never changes, and knows all its keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)
