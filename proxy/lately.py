"""What the agent of a call did lately, for filters to tell."""

import msgspec

from filters.episode import Episode
from proxy import identity
from proxy.memory.episodes.source import Episodes
from proxy.memory.store import Key
from proxy.place import Place
from proxy.wire import Call


class Lately(msgspec.Struct, frozen=True):
    """Whose episodes are told, how far back and how many; without ``agent``, ``place`` says whose."""

    agent: str | None
    place: Place
    hours: float
    limit: int


async def lately(
    asked: Lately, episodes: Episodes, call: Call, *, tenant: str, now: float
) -> tuple[Episode, ...]:
    """The newest first; none for a call that names no agent. Raises StoreError."""
    agent = asked.agent or identity.found(call, (asked.place,))
    if agent is None:
        return ()
    since = now - 3600 * asked.hours
    recent = await episodes.recent(Key(tenant, agent), since=since, limit=asked.limit)
    return tuple(one.episode for one in recent)
