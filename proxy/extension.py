"""What voice engines add to OpenAI's fields, and of what type each must be to be of any use."""

from collections.abc import Mapping, Sequence
from types import NoneType
from typing import Any, Final

from filters.message import LARGEST, Message

Types = frozenset[object]

_TEXT: Final = frozenset({str, NoneType})
_FLAG: Final = frozenset({bool, NoneType})
_WHOLE: Final = frozenset({int, NoneType})
_NUMBER: Final = frozenset({int, float, NoneType})

TOP_LEVEL: Final[Mapping[str, Types]] = {"turn_id": _WHOLE, "timestamp": _NUMBER, "interruptable": _FLAG}
"""Beside the messages."""

_MARKS: Final[Mapping[str, Types]] = {
    "source": _TEXT,
    "user": _TEXT | {int},  # a whole number names a caller as well as a text does
    "interrupted": _FLAG,
    "interrupt_timestamp": _NUMBER,
    "original": _TEXT,
}
_ALL: Final = _MARKS.keys()


def fits(name: str, value: object) -> bool:
    """Whether a field of the top level is of use; whatever is no extension is."""
    types = TOP_LEVEL.get(name)
    return types is None or (type(value) in types and not _is_beyond(value))


def misfits(messages: Sequence[Message]) -> list[str]:
    """The paths of what cannot be used in the messages' metadata."""
    return [
        f"messages[{i}].metadata.{name}"
        for i, message in enumerate(messages)
        if message.metadata
        for name, value in message.metadata.items()
        if name in _ALL and type(value) not in _MARKS[name]
    ]


def _is_beyond(value: Any) -> bool:
    return value is not None and abs(value) > LARGEST
