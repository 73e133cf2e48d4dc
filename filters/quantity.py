"""Durations and sizes, as people write them."""

import re

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_BYTES = {"b": 1, "kb": 1000, "mb": 1000**2, "kib": 1024, "mib": 1024**2}
_WRITTEN = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,6})?) ?([a-zA-Z]{1,3})")


def seconds(written: object) -> float:
    """The seconds in ``50ms``, ``5s``, ``2m``, ``1h`` or ``90d``. Raises ValueError for anything else."""
    number, unit = _parts(written)
    if unit not in _SECONDS or not number:
        raise ValueError("write a duration above zero, with its unit, such as 50ms, 5s, 30m, 1h or 90d")
    return number * _SECONDS[unit]


def size(written: object) -> int:
    """The bytes in ``512KB``, ``16MB``, ``16MiB``. Raises ValueError for anything else."""
    number, unit = _parts(written)
    count = int(number * _BYTES.get(unit.lower(), 0))
    if not count:
        raise ValueError("write a size above zero, with its unit, such as 512KB, 16MB or 16MiB")
    return count


def _parts(written: object) -> tuple[float, str]:
    found = _WRITTEN.fullmatch(written.strip()) if isinstance(written, str) else None
    return (float(found[1]), found[2]) if found else (0.0, "")
