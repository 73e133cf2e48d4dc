"""A tenant's sessions, as Redis holds them."""

from collections.abc import AsyncIterator

from proxy.memory.redis.names import Names, member
from proxy.memory.redis.scripts import Client
from proxy.memory.store import Key, Listed

_AT_ONCE = 100


async def page(client: Client, names: Names, tenant: str, after: str, limit: int) -> list[Listed]:
    """Up to ``limit`` sessions behind ``after``: ids first, then what is still there of them."""
    listed: list[Listed] = []
    if limit <= 0:
        return listed
    async for ids in _ids(client, names.index(tenant).first, after):
        listed += await _present(client, names, tenant, ids)
        if len(listed) >= limit:
            break
    return listed[:limit]


async def _ids(client: Client, index: str, after: str) -> AsyncIterator[list[str]]:
    bound = b"(" + member(after) if after else b"-"
    while found := await client.execute_command("ZRANGEBYLEX", index, bound, "+", "LIMIT", 0, _AT_ONCE):
        yield [one.decode("utf-8", "surrogatepass") for one in found]
        bound = b"(" + found[-1]


async def _present(client: Client, names: Names, tenant: str, ids: list[str]) -> list[Listed]:
    pipeline = client.pipeline(transaction=False)
    for one in ids:
        pipeline.execute_command("HMGET", names.session(Key(tenant, one)).first, "updated", "size")
    found = await pipeline.execute()
    return [Listed(one, float(at), int(size)) for one, (at, size) in zip(ids, found, strict=True) if at]
