"""All bytes in a store, to be searched."""

import asyncio
from pathlib import Path
from typing import Any

import asyncpg
import redis


def stored_bytes(*urls: str) -> bytes:
    """The bytes of SQLite files with their logs, of a Redis's keys and values, of PostgreSQL's rows."""
    return b"\n".join(map(_bytes_at, urls))


def _bytes_at(url: str) -> bytes:
    if url.startswith("sqlite:"):
        path = Path(url.removeprefix("sqlite:"))
        return b"".join(each.read_bytes() for each in sorted(path.parent.glob(f"{path.name}*")))
    return _redis_bytes(url) if url.startswith("redis:") else asyncio.run(_postgres_bytes(url))


def _redis_bytes(url: str) -> bytes:
    """Keys and values as they are read: a dump of Redis's own may be compressed."""
    with redis.Redis.from_url(url) as client:
        return b"\n".join(
            b"%s: %s" % (key, _flat(_value(client, key))) for key in client.scan_iter(count=1000)
        )


def _value(client: "redis.Redis[bytes]", key: bytes) -> Any:
    match client.type(key):
        case b"hash":
            return client.hgetall(key)
        case b"list":
            return client.lrange(key, 0, -1)
        case b"zset":
            return client.zrange(key, 0, -1, withscores=True)
        case b"string":
            return client.get(key)
        case kind:
            raise AssertionError(f"a key of the kind {kind!r}")


async def _postgres_bytes(url: str) -> bytes:
    connection = await asyncpg.connect(url)
    try:
        tables = await connection.fetch("SELECT tablename FROM pg_tables WHERE schemaname = current_schema()")
        rows = [await connection.fetch(f'SELECT * FROM "{table}"') for (table,) in tables]
        return b"\n".join(_flat(list(row.values())) for page in rows for row in page)
    finally:
        await connection.close()


def _flat(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, dict):
        value = [each for pair in value.items() for each in pair]
    if isinstance(value, list | tuple):
        return b" ".join(map(_flat, value))
    return str(value).encode("utf-8", "surrogatepass")
