"""Where agents' episodes are kept."""

import re
from typing import Final, Protocol
from urllib.parse import quote

from proxy.memory.episodes.episode import EpisodicMemory
from proxy.memory.stores.store import Key

REDIS: Final = ("redis:", "rediss:", "redis+", "rediss+")
"""How addresses begin that are a Redis's."""
_KEYLESS: Final = "default"
"""The tenant of whoever needs no key."""
_MISTAKEN: Final = re.compile("/|%(?=25|2F)")
"""What might be taken for the end of a tenant's name, or for what stands in its place."""


class Episodes(Protocol):
    """Episodes by agent: a ``Key`` of its tenant and its id. Both methods may raise StoreError.

    No call waits for what is added.
    """

    async def add(self, agent: Key, episode: EpisodicMemory, *, ttl: float) -> EpisodicMemory:
        """Keeps it for ``ttl`` seconds; returned as it is kept, a little later where its time was taken."""
        ...

    async def recent(
        self, agent: Key, *, since: float, limit: int | None, leisure: bool = False
    ) -> list[EpisodicMemory]:
        """Those from ``since`` on (seconds since 1970), newest first; ValueError where one cannot be read.

        Where no call waits there is ``leisure``: all of them. A call may be told the newest alone, of which a
        quarter of a megabyte at the least is at hand.
        """
        ...

    async def aclose(self) -> None:
        """Closes what this alone has opened."""
        ...


def agent_id(agent: Key) -> str:
    """An agent's id as keys on a Redis have it: its own, behind the name of a tenant that has a key.

    No tenant's name holds a slash, so a slash in an agent's own name is written otherwise.
    """
    if agent.tenant != _KEYLESS:
        return f"{agent.tenant}/{agent.session}"
    return _MISTAKEN.sub(lambda found: quote(found[0], safe=""), agent.session)


def agent_of(agent_id: str) -> Key:
    """The agent that is called so by a program beside the proxy."""
    tenant, slash, name = agent_id.partition("/")
    is_anothers = slash and name and tenant not in {"", _KEYLESS}
    return Key(tenant, name) if is_anothers else Key(_KEYLESS, agent_id)
