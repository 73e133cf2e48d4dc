"""The request body for a kind of upstream, decoded again."""

from typing import Any

import msgspec
import pytest

from filters.message import Message
from proxy.upstream.body import compose
from proxy.upstream.providers import PROVIDERS, Provider
from tests.bodies import fields_of, message_of

HELLO = [Message(role="user", content="Hello")]

every_kind = pytest.mark.parametrize("kind", PROVIDERS.values(), ids=PROVIDERS.keys())


def sent(kind: Provider, body: dict[str, Any], **options: Any) -> dict[str, Any]:
    return msgspec.json.decode(compose(kind, fields_of(body), HELLO, **options))


def sent_message(kind: Provider, message: dict[str, Any], **options: Any) -> dict[str, Any]:
    before = [] if message["role"] == "user" else HELLO
    composed = compose(kind, {}, [*before, message_of(message)], **options)
    return msgspec.json.decode(composed)["messages"][len(before)]
