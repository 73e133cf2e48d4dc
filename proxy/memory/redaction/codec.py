"""The stores' edge: whoever writes a session, nothing that must not be stored gets past it."""

import contextlib

import msgspec

from proxy.memory.redaction.redaction import Redaction
from proxy.memory.session import Entry, Session, encode
from proxy.memory.stores.codec import Codec
from proxy.memory.stores.store import Key


class _Kind(msgspec.Struct, frozen=True):
    """An entry has a role; a session has none."""

    role: str | None = None


class RedactingCodec:
    """Another codec, which is given sessions and entries with marks; what is neither passes as it is."""

    def __init__(self, codec: Codec, redaction: Redaction) -> None:
        self._redaction = redaction
        self._codec = codec
        self.decode = codec.decode
        self.derived = codec.derived

    def encode(self, key: Key, blob: bytes) -> bytes:
        """As the codec does, with marks."""
        # A lease, or an agent's episodes, are none: they say nothing, or have been redacted before.
        with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
            blob = self._marked(blob)
        return self._codec.encode(key, blob)

    def _marked(self, blob: bytes) -> bytes:
        if msgspec.msgpack.decode(blob, type=_Kind).role is None:
            session = msgspec.msgpack.decode(blob, type=Session)
            marked = self._redaction.session(session)
            return blob if marked is session else encode(marked)
        entry = msgspec.msgpack.decode(blob, type=Entry)
        shown = self._redaction.entry(entry)
        return blob if shown is entry else msgspec.msgpack.encode(shown)
