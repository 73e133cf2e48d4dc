"""What a filter is: a frozen value made from its options, and one pure function over messages."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import msgspec
from pydantic import BaseModel, ConfigDict

from filters.message import Message

Messages = Sequence[Message]


class Snapshot(msgspec.Struct, frozen=True):
    """What memory holds of a session at the moment of a turn; empty where nothing is remembered."""

    turns: tuple[Message, ...] = ()


class Context(msgspec.Struct, frozen=True, kw_only=True):
    """What a filter may know beside the messages. ``now`` is in seconds since 1970."""

    now: float
    tenant: str = "default"
    session: str | None = None
    user: str | None = None
    memory: Snapshot = Snapshot()


class Example(msgspec.Struct, frozen=True):
    """A conversation before and after a filter: its documentation, and its test.

    Messages are written as a client sends them.
    """

    title: str
    options: Mapping[str, Any]
    before: Sequence[Mapping[str, Any]]
    after: Sequence[Mapping[str, Any]]
    context: Context = Context(now=0.0)


class RequestFilter(BaseModel):
    """A step between the client's messages and the model's.

    The class is the options: its fields are the keys in YAML. ``apply`` does no I/O, changes nothing that
    it was given, and returns the same for the same.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    examples: ClassVar[tuple[Example, ...]] = ()

    def apply(self, messages: Messages, context: Context) -> Messages:
        """The messages as the next step sees them."""
        raise NotImplementedError
