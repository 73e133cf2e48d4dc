"""Sessions on Redis: one server, Sentinel or Cluster.

A session is two keys in one hash slot: a hash with its version, its hot part and when it was written, and a
list with its cold part. A tenant's list of sessions stands in another slot: a session's place in it may be
lost, which its next write puts right, and may outlive the session, which the list does not show.

``store`` first, with ``names``, ``scripts`` and ``listing``. It asks over a ``link``, by a ``client`` made
for the ``address``; a single server is asked over one ``line``. A ``fault`` says what went wrong, ``counts``
are for limits.
"""

from proxy.memory.redis.address import Address
from proxy.memory.redis.client import clients
from proxy.memory.redis.link import Link
from proxy.memory.redis.names import Names
from proxy.memory.redis.store import RedisStore
from proxy.memory.store import LEISURE, Store

__all__ = ["open"]


def open(  # noqa: A001  (a driver is opened, as a file is)
    url: str, *, deadline: float, leisure: float = LEISURE
) -> Store:
    """The store at this address, whose operations end within ``deadline`` or ``leisure`` seconds.

    Those that have leisure go over connections of their own: how long a reply may take is a connection's
    matter, and calls shall not wait behind what is long.

    Nothing is connected before the first operation. Raises ValueError, which never shows the address, for
    one that cannot be understood.
    """
    place = Address.of(url)
    leisure = max(deadline, leisure)
    link, writing = (Link(clients(place, deadline), deadline=deadline) for _ in range(2))
    leisurely = Link(clients(place, leisure), deadline=leisure)
    return RedisStore(link, writing, leisurely, Names(place.prefix))
