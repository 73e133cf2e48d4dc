"""Whose words are held."""

from typing import NamedTuple


class Owner(NamedTuple):
    """A person; where that is empty, the tenant: what it owns itself, all its persons may find."""

    tenant: str
    person: str = ""
