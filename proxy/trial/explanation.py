"""All that would happen to one call, as it is told."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from proxy.trial.stripping import Stripped

Read = Literal["read", "left out", "none"]
"""Whether memory was read, though there is some, or there is none for a call."""


class Whose(msgspec.Struct, frozen=True, kw_only=True):
    """Whose turn it is, and the places that said so; ``None`` where no place did."""

    tenant: str
    session: str | None
    session_from: str | None
    user: str | None
    user_from: str | None
    background: bool


class Change(msgspec.Struct, frozen=True):
    """A field of the top level before and after a filter; ``UNSET`` where it is not there."""

    name: str
    before: Any = UNSET
    after: Any = UNSET


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """What one filter did. ``before`` and ``after`` are messages, there only where the filter changed any.

    ``options`` are those that the configuration sets. One that has ``failed`` was passed over.
    """

    filter: str
    options: Mapping[str, Any]
    changed: bool
    failed: bool = False
    microseconds: int
    before: Sequence[Mapping[str, Any]] | UnsetType = UNSET
    after: Sequence[Mapping[str, Any]] | UnsetType = UNSET
    fields: tuple[Change, ...] = ()


class Destination(msgspec.Struct, frozen=True, kw_only=True):
    """Where the request would go, and which model it would ask for."""

    upstream: str
    kind: str
    model: str | None


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """All that would happen to one call.

    Values of fields that neither OpenAI nor a known engine names are not in it, only their type and length.
    ``sent`` is the body that the upstream would get; ``stripped`` is what it would not. ``memory`` is whether
    it was read, left out, or there is none for this call; ``degraded`` is what it did not tell, and what else
    was left out. ``heard`` are the messages with what memory marks in them, where it does; ``tools`` are the
    proxy's own that the model would be offered.
    """

    pipeline: str
    whose: Whose
    ignored: tuple[str, ...]
    memory: Read
    degraded: tuple[str, ...]
    messages: Sequence[Mapping[str, Any]]
    heard: Sequence[Mapping[str, Any]] | UnsetType = UNSET
    tools: tuple[str, ...]
    steps: tuple[Step, ...]
    destination: Destination
    stripped: tuple[Stripped, ...]
    sent: Mapping[str, Any]
