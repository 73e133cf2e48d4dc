"""Calls as a client would send them, for the suites that read them."""

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import msgspec

from proxy.turn.request import ClientRequest
from tests.bodies import messages_of


def call_of(
    body: Mapping[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
    path: str = "/chat/completions",
    raw: Mapping[str, bytes] | None = None,
) -> ClientRequest:
    """A call with this body; ``raw`` adds top-level fields as the very bytes on the wire."""
    body = dict(body or {})
    messages = messages_of([_sent(message) for message in body.pop("messages", [])])
    fields = {name: json.dumps(value).encode() for name, value in body.items()} | dict(raw or {})
    return ClientRequest(
        headers={name.lower(): value for name, value in (headers or {}).items()},
        query=dict(parse_qsl(urlsplit(path).query)),
        fields={name: msgspec.Raw(value) for name, value in fields.items()},
        messages=messages,
    )


def _sent(message: dict[str, Any]) -> dict[str, Any]:
    """Encodes a message as the client sent it, with unknown fields beside known ones."""
    return {name: value for name, value in message.items() if name != "others"} | message.get("others", {})
