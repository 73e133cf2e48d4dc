"""Compressed answers."""

import gzip
import zlib

import pytest

from tests.contract_upstream import Make, ask, whole
from tests.peers.http_peer import answering, serve, sized

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("coding", "data"),
    [
        (b"gzip", gzip.compress(b"hello", mtime=0)),
        (b"x-gzip", gzip.compress(b"hello", mtime=0)),
        (b"GZIP", gzip.compress(b"hello", mtime=0)),
        (b"gzip", gzip.compress(b"hel", mtime=0) + gzip.compress(b"lo", mtime=0)),
        (b"gzip", gzip.compress(b"hello", mtime=0) + b"\0" * 9),
        (b"deflate", zlib.compress(b"hello")),
        (b"deflate", zlib.compress(b"hello", wbits=-15)),
        (b"identity", b"hello"),
    ],
)
async def test_codings_are_undone_in_any_cut(client: Make, coding: bytes, data: bytes) -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-encoding: %b\r\ncontent-length: %d\r\n\r\n" % (coding, len(data))
    pieces = [data[i : i + 1] for i in range(len(data))]
    async with serve(answering(head, *pieces)) as peer:
        assert await whole(client(peer.url)) == b"hello"


async def test_flushed_gzip_comes_through_at_once(client: Make) -> None:
    packer = zlib.compressobj(wbits=31)
    first = packer.compress(b"data: 1\n\n") + packer.flush(zlib.Z_SYNC_FLUSH)
    head = b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\n\r\n"
    async with serve(answering(head + first)) as peer:
        response = await ask(client(peer.url))
        assert await response.read() == b"data: 1\n\n"
        response.close()


async def test_a_bomb_goes_off_in_small_pieces(client: Make) -> None:
    bomb = gzip.compress(bytes(50_000_000))
    async with serve(answering(sized(bomb, b"content-encoding: gzip"))) as peer:
        response, total = await ask(client(peer.url)), 0
        while data := await response.read():
            assert len(data) <= 1 << 17
            total += len(data)
        assert total == 50_000_000
