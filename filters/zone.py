"""Where a clock hangs."""

from datetime import UTC, tzinfo
from typing import Annotated
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import AfterValidator


def zone_named(name: str) -> tzinfo:
    """The time zone of an IANA name. Raises ValueError where there is none."""
    try:
        return UTC if name == "UTC" else ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(f"no time zone '{name}'; IANA names look like Europe/Berlin") from None


def _is_timezone(name: str) -> str:
    zone_named(name)
    return name


Timezone = Annotated[str, AfterValidator(_is_timezone)]
"""An option that holds the IANA name of a time zone."""
