"""What a client keeps with its session, as far as it can stand within a text."""

from collections.abc import Mapping
from typing import Any

from filters.template import STATE


def worded(state: Mapping[str, Any], name: str) -> str:
    """The value behind ``state.NAME`` as text; empty where there is none, or one that is no plain value."""
    value = state.get(name.removeprefix(STATE))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value) if isinstance(value, str | int | float) else ""
