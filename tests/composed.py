"""What a kind of upstream is sent, read back."""

from typing import Any

import msgspec
import pytest

from filters.message import Message
from proxy.kinds import KINDS, Kind, compose
from tests.bodies import fields_of, message_of

HELLO = [Message(role="user", content="Hello")]

every_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())


def sent(kind: Kind, body: dict[str, Any], **options: Any) -> dict[str, Any]:
    return msgspec.json.decode(compose(kind, fields_of(body), HELLO, **options))


def sent_message(kind: Kind, message: dict[str, Any], **options: Any) -> dict[str, Any]:
    before = [] if message["role"] == "user" else HELLO
    composed = compose(kind, {}, [*before, message_of(message)], **options)
    return msgspec.json.decode(composed)["messages"][len(before)]
