"""What the keys are called."""

from typing import NamedTuple
from urllib.parse import quote

from proxy.memory.store import Key


class Pair(NamedTuple):
    """Two keys in one hash slot."""

    first: str
    second: str


class Names:
    """The keys under one prefix.

    Ids are percent-encoded, down to letters, digits and ``_.-~``: no two sessions share a key, whatever their
    ids hold, and no id reaches beyond its place within the hash tag.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix

    def session(self, key: Key) -> Pair:
        """The hash with the hot part, and the list with the cold part."""
        tag = f"{self._prefix}{{{_escaped(key.tenant)}:{_escaped(key.session)}}}"
        return Pair(tag + ":hot", tag + ":cold")

    def index(self, tenant: str) -> Pair:
        """The sorted sets with a tenant's session ids: by id, and by when they expire."""
        tag = f"{self._prefix}{{={_escaped(tenant)}}}"  # an empty tag would be none
        return Pair(tag + ":ids", tag + ":due")

    def count(self, key: str) -> Pair:
        """A number that is counted up, under a tag that no session has."""
        tag = f"{self._prefix}{{#{_escaped(key)}}}"
        return Pair(tag + ":window", tag + ":unused")

    def trial(self, mark: str) -> Pair:
        """Two keys that belong to no session: an index is called otherwise, and a session has a colon."""
        tag = f"{self._prefix}{{{mark}}}"
        return Pair(tag + ":hot", tag + ":cold")


def member(session: str) -> bytes:
    """A session's id as an index holds it: bytes, whose order is that of the ids."""
    return session.encode("utf-8", "surrogatepass")


def _escaped(name: str) -> str:
    return quote(name.encode("utf-8", "surrogatepass"), safe="")
