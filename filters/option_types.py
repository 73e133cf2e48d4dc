"""Types of options: strict numbers, durations, sizes, time zones and templates."""

import re
from collections.abc import Collection, Mapping
from datetime import UTC, tzinfo
from string import Formatter
from typing import Annotated, Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import AfterValidator, BeforeValidator
from pydantic_core import PydanticKnownError

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_BYTES = {"b": 1, "kb": 1000, "mb": 1000**2, "kib": 1024, "mib": 1024**2}
_SPELT = {"b": "B", "kb": "KB", "mb": "MB", "kib": "KiB", "mib": "MiB"}
_WRITTEN = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,6})?) ?([a-zA-Z]{1,3})")
DURATION = r"^\s*[0-9]+(\.[0-9]+)? ?(ms|s|m|h|d)\s*$"
"""The form of a duration."""
SIZE = r"^\s*[0-9]+(\.[0-9]+)? ?([kKmM][iI]?)?[bB]\s*$"
"""The form of a size."""
STATE = "state."
"""The prefix of names for the data that a client keeps with its session; any plain name may follow."""
_STATE_NAME = re.compile(r"state\.[A-Za-z_][A-Za-z0-9_]{0,63}")


def _whole(value: object) -> object:
    if isinstance(value, bool):
        raise PydanticKnownError("int_type")
    return value


def _number(value: object) -> object:
    if isinstance(value, bool):
        raise PydanticKnownError("float_type")
    return value


Whole = Annotated[int, BeforeValidator(_whole, json_schema_input_type=int)]
"""A whole number."""
Number = Annotated[float, BeforeValidator(_number, json_schema_input_type=float)]
"""Any number."""
Bound = Annotated[int | float, BeforeValidator(_number, json_schema_input_type=int | float)]
"""Any number; an integer stays one."""


def seconds(written: object) -> float:
    """Returns the seconds in ``50ms``, ``5s``, ``2m``, ``1h`` or ``90d``; raises ValueError otherwise."""
    number, unit = _parts(written)
    if unit not in _SECONDS or not number:
        example = "such as 50ms, 5s, 30m, 1h or 90d"
        raise ValueError(f"write a duration above zero, with its unit, {example}{_number_part(written)}")
    return round(number * _SECONDS[unit], 9)  # so that 1400 ms are exactly 1.4 s


def size(written: object) -> int:
    """Returns the bytes in ``512KB``, ``16MB`` or ``16MiB``; raises ValueError for anything else."""
    number, unit = _parts(written)
    count = int(number * _BYTES.get(unit.lower(), 0))
    if not count:
        raise ValueError(
            f"write a size above zero, with its unit, such as 512KB, 16MB or 16MiB{_number_part(written)}"
        )
    return count


def _number_part(written: object) -> str:
    """Returns the end of a message that quotes a bare number; empty for a text, which may be a secret."""
    return f"; got {written}" if isinstance(written, int | float) and not isinstance(written, bool) else ""


def as_duration(count: float) -> str:
    """Returns seconds as a duration such as ``90d``, in the largest unit that gives a whole number."""
    fitting = ((round(count / each, 6), unit) for unit, each in reversed(_SECONDS.items()))
    whole = (f"{int(number)}{unit}" for number, unit in fitting if number >= 1 and number % 1 == 0)
    return next(whole, f"{count:.6f}".rstrip("0") + "s")


def as_size(count: int) -> str:
    """Returns bytes as a size such as ``16MB``, in the largest unit that gives a whole number."""
    units = sorted(_BYTES.items(), key=lambda each: -each[1])
    return next(f"{count // each}{_SPELT[unit]}" for unit, each in units if count % each == 0)


def _parts(written: object) -> tuple[float, str]:
    match = _WRITTEN.fullmatch(written.strip()) if isinstance(written, str) else None
    return (float(match[1]), match[2]) if match else (0.0, "")


def time_zone(name: str) -> tzinfo:
    """Returns the time zone with an IANA name; raises ValueError for an unknown name."""
    try:
        return UTC if name == "UTC" else ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(f"no time zone '{name}'; IANA names look like Europe/Berlin") from None


def _is_timezone(name: str) -> str:
    time_zone(name)
    return name


Timezone = Annotated[str, AfterValidator(_is_timezone)]
"""An option that holds the IANA name of a time zone."""


def template_with(*names: str, required: Collection[str] = ()) -> AfterValidator:
    """Returns a validator for a template, which may use ``names`` in braces, and must use ``required`` ones.

    With ``state.`` among the names, a template may also use ``state.`` and any name of the client's choice.

    A valid template can be filled by ``str.format``, since it has no attribute, index, conversion or format.
    Values are never read as templates themselves.
    """

    def check(text: str) -> str:
        fields = names_in(text)
        for name in fields:
            if name not in names and not (STATE in names and _STATE_NAME.fullmatch(name)):
                raise ValueError(f"{{{name}}} is not a name in this template; available: {_listed(names)}")
        missing = [name for name in required if name not in fields]
        if missing:
            raise ValueError(f"the template must contain {_listed(missing)}")
        return text

    return AfterValidator(check)


def names_in(text: str) -> tuple[str, ...]:
    """Returns the names in a template, in order and without repeats.

    Raises ValueError for a lone brace, and for ``{name!r}`` or ``{name:>9}``.
    """
    names: dict[str, None] = {}
    for _, name, layout, conversion in _pieces(text):
        if layout or conversion:
            raise ValueError(f"{{{name}}} must stand alone in its braces, without '!' or ':'")
        if name is not None:
            names[name] = None
    return tuple(names)


def fill_template(template: str, values: Mapping[str, str]) -> str:
    """Replaces the names in a valid template by their values; ``state.x`` is looked up as one name."""
    pieces = _pieces(template)
    return "".join(text + (values[name] if name is not None else "") for text, name, _, _ in pieces)


def _pieces(text: str) -> list[tuple[str, str | None, str | None, str | None]]:
    try:
        return list(Formatter().parse(text))
    except ValueError:
        raise ValueError("unpaired brace; write {{ or }} for a literal brace") from None


def _listed(names: Collection[str]) -> str:
    return ", ".join("{state.…}" if name == STATE else f"{{{name}}}" for name in names)


def state_text(state: Mapping[str, Any], name: str) -> str:
    """Returns the value of ``state.NAME`` as text, with ``yes`` or ``no`` for a boolean.

    It is empty if there is none, or if the value is a list, an object or null.
    """
    value = state.get(name.removeprefix(STATE))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value) if isinstance(value, str | int | float) else ""
