"""The fields of an exported session as JSON carries them."""

from typing import Any

import msgspec


def fields(**own: Any) -> dict[str, msgspec.Raw]:
    """The fields by name, each encoded by itself."""
    encoded = msgspec.json.encode(own)
    return msgspec.json.decode(encoded, type=dict[str, msgspec.Raw])
