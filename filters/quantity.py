"""Durations and sizes, as people write them."""

import re

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_BYTES = {"b": 1, "kb": 1000, "mb": 1000**2, "kib": 1024, "mib": 1024**2}
_SPELT = {"b": "B", "kb": "KB", "mb": "MB", "kib": "KiB", "mib": "MiB"}
_WRITTEN = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,6})?) ?([a-zA-Z]{1,3})")

DURATION = r"^\s*[0-9]+(\.[0-9]+)? ?(ms|s|m|h|d)\s*$"
"""What a duration looks like; text that does not match is none."""
SIZE = r"^\s*[0-9]+(\.[0-9]+)? ?([kKmM][iI]?)?[bB]\s*$"
"""What a size looks like; text that does not match is none."""


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


def as_duration(count: float) -> str:
    """Seconds as one writes them, in the largest unit that leaves a whole number."""
    fitting = ((round(count / each, 6), unit) for unit, each in reversed(_SECONDS.items()))
    whole = (f"{int(number)}{unit}" for number, unit in fitting if number >= 1 and number % 1 == 0)
    return next(whole, f"{count:.6f}".rstrip("0") + "s")


def as_size(count: int) -> str:
    """Bytes as one writes them, in the largest unit that leaves a whole number."""
    units = sorted(_BYTES.items(), key=lambda each: -each[1])
    return next(f"{count // each}{_SPELT[unit]}" for unit, each in units if count % each == 0)


def _parts(written: object) -> tuple[float, str]:
    found = _WRITTEN.fullmatch(written.strip()) if isinstance(written, str) else None
    return (float(found[1]), found[2]) if found else (0.0, "")
