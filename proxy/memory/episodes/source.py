"""Where agents' episodes are kept."""

from typing import Final, Protocol

from proxy.memory.episodes.episode import EpisodicMemory
from proxy.memory.store import Key

REDIS: Final = ("redis:", "rediss:", "redis+", "rediss+")
"""How addresses begin that are a Redis's."""


class Episodes(Protocol):
    """Episodes by agent: a ``Key`` of its tenant and its id. Both methods may raise StoreError."""

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
    """An agent's id with its tenant before it; no tenant's name holds a slash."""
    return f"{agent.tenant}/{agent.session}" if agent.tenant else agent.session


def agent_of(agent_id: str) -> Key:
    """The agent that is called so."""
    tenant, slash, name = agent_id.partition("/")
    return Key(tenant, name) if slash and name else Key("", agent_id)
