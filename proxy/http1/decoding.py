"""Content codings, undone piece by piece."""

import zlib
from typing import Protocol

from proxy.errors import UpstreamBroken
from proxy.http1.envelope import Headers

PIECE = 1 << 17
_GZIP, _ZLIB, _RAW = 31, 15, -15
_CM_MASK, _CM_DEFLATE = 0x0F, 8


class _Inflater(Protocol):
    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    @property
    def unconsumed_tail(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int = 0, /) -> bytes: ...


class Decoder:
    """A compressed body, fed as it comes and given out in bounded pieces."""

    __slots__ = ("_gzip", "_inflater", "_tail", "more")

    def __init__(self, *, gzip: bool) -> None:
        self.more = False
        self._gzip = gzip
        self._tail = b""
        self._inflater: _Inflater | None = None

    def feed(self, data: bytes) -> bytes:
        """The next piece, at most 128 KB; `more` says that another can be had without new bytes."""
        data = self._tail + data if self._tail else data
        pieces: list[bytes] = []
        room = PIECE
        while room and (data or self.more):
            out, data = self._step(data, room)
            pieces.append(out)
            room -= len(out)
        self._tail, self.more = data, not room
        return b"".join(pieces)

    def end(self) -> None:
        """True to its word: the compressed body ended where it should have."""
        if self._inflater is not None and not self._inflater.eof:
            raise UpstreamBroken("the model's compressed answer was cut short")

    def _step(self, data: bytes, room: int) -> tuple[bytes, bytes]:
        inflater = self._current(data)
        if inflater is None:
            return b"", b""
        try:
            out = inflater.decompress(data, room)
        except zlib.error as error:
            raise UpstreamBroken(f"the model's compressed answer is damaged: {error}") from None
        self.more = len(out) == room
        return out, inflater.unused_data if inflater.eof else inflater.unconsumed_tail

    def _current(self, data: bytes) -> _Inflater | None:
        inflater = self._inflater
        if inflater is not None and not inflater.eof:
            return inflater
        if inflater is not None and not data.lstrip(b"\0"):  # padding after the last member
            self.more = False
            return None
        self._inflater = zlib.decompressobj(self._window(data))
        return self._inflater

    def _window(self, data: bytes) -> int:
        # Some servers call raw deflate "deflate", which should be zlib: the first byte tells them apart.
        if self._gzip:
            return _GZIP
        return _ZLIB if data[0] & _CM_MASK == _CM_DEFLATE else _RAW


def decoder_of(headers: Headers) -> Decoder | None:
    """What undoes the body's coding, None for a plain one; UpstreamBroken for a coding unknown here."""
    coding = b", ".join(value for name, value in headers if name == b"content-encoding").strip().lower()
    if coding in (b"", b"identity"):
        return None
    if coding in (b"gzip", b"x-gzip", b"deflate"):
        return Decoder(gzip=coding != b"deflate")
    raise UpstreamBroken(
        f"the model answered in the content encoding {coding[:40]!r}, which was not asked for"
    )
