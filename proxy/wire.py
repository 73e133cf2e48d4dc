"""A request as bytes, read once: fields stay raw JSON, messages become values."""

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Raw

from filters.message import Message
from proxy.errors import RequestError


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One chat completion as a client asked for it.

    Header names are in lower case. ``fields`` holds the body's top level as raw JSON, in the client's
    order, without ``messages``. ``ignored`` names extension fields that could not be used.
    """

    headers: Mapping[str, str]
    query: Mapping[str, str]
    fields: dict[str, Raw]
    messages: list[Message]
    ignored: tuple[str, ...] = ()

    def field(self, name: str) -> Any:
        """A field of the top level, decoded; ``None`` where it is missing."""
        raw = self.fields.get(name)
        return None if raw is None else msgspec.json.decode(raw)
