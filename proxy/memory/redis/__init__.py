"""Sessions on Redis: one server, Sentinel or Cluster.

A session is two keys in one hash slot: a hash with its version, its hot part and when it was written, and a
list with its cold part. A tenant's list of sessions stands in another slot: a session's place in it may be
lost, which its next write puts right, and may outlive the session, which the list does not show.
"""

from proxy.memory.redis.address import Address
from proxy.memory.redis.client import clients
from proxy.memory.redis.link import Link
from proxy.memory.redis.names import Names
from proxy.memory.redis.store import RedisStore
from proxy.memory.store import Store

__all__ = ["open"]


def open(url: str, *, deadline: float) -> Store:  # noqa: A001  (a driver is opened, as a file is)
    """The store at this address, each of whose operations ends within ``deadline`` seconds.

    Nothing is connected before the first operation. Raises ValueError, which never shows the address, for
    one that cannot be understood.
    """
    place = Address.of(url)
    return RedisStore(Link(clients(place, deadline), deadline=deadline), Names(place.prefix))
