"""Stored structs that keep the unknown fields of newer versions."""

from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any, Final, TypeVar

import msgspec
from msgspec import inspect

from proxy.memory.errors import Unreadable

T = TypeVar("T")
Fields = dict[str, Any]

NO_FIELDS: Final = msgspec.msgpack.encode({})
"""The ``unknown_fields`` of a struct without any, which may contain a struct with some."""
_UNKNOWN: Final = "~unknown"
_type: Final[Callable[[Any], inspect.Type]] = cache(inspect.type_info)


class Extensible(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A stored struct to which newer versions may have added fields.

    ``unknown_fields`` is a map of them as msgpack; it is empty if no struct within this one has any either.
    Copies by ``msgspec.structs.replace`` have them, too.
    """

    unknown_fields: bytes = msgspec.field(default=b"", name=_UNKNOWN)


def encode(value: object) -> bytes:
    """Encodes a value as msgpack, with unknown fields in their places.

    Integers of more than 64 bits, which msgpack does not support, are stored as floats.
    """
    try:
        encoded = msgspec.msgpack.encode(value)
    except OverflowError:
        encoded = msgspec.msgpack.encode(_narrowed(msgspec.to_builtins(value, builtin_types=(bytes,))))
    if not isinstance(value, Extensible) or not value.unknown_fields:
        return encoded
    return msgspec.msgpack.encode(_changed(msgspec.msgpack.decode(encoded), _type(type(value)), _merge))


def decode(blob: bytes, kind: type[T]) -> T:
    """Decodes a value from msgpack. Raises Unreadable for other bytes."""
    try:
        with suppress(msgspec.ValidationError):
            # Strict decoding fails on unknown fields, so that values without any cost nothing more.
            return msgspec.msgpack.decode(blob, type=kind)
        plain = _changed(msgspec.msgpack.decode(blob), _type(kind), _set_apart)
        if isinstance(plain, dict):
            plain.setdefault(_UNKNOWN, NO_FIELDS)
        return msgspec.msgpack.decode(msgspec.msgpack.encode(plain), type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Unreadable(f"its bytes cannot be decoded: {type(error).__name__}") from None


def _narrowed(value: Any) -> Any:
    """Returns the value with floats in place of integers of more than 64 bits."""
    match value:
        case dict():
            return {name: _narrowed(each) for name, each in value.items()}
        case list() | tuple():
            return [_narrowed(each) for each in value]
        case int() if not -(2**63) <= value < 2**64:
            return float(str(value))  # infinity beyond the range of floats
        case _:
            return value


def _changed(value: Any, kind: inspect.Type, change: Callable[[Fields, frozenset[str]], Fields]) -> Any:
    """Returns the value with each extensible struct within it changed, innermost first."""
    match kind, value:
        case inspect.StructType(cls=cls, fields=fields, array_like=False), dict():
            types = {field.encode_name: field.type for field in fields}
            within = {
                name: _changed(each, types[name], change) if name in types else each
                for name, each in value.items()
            }
            return change(within, frozenset(types)) if issubclass(cls, Extensible) else within
        case inspect.ListType(item_type=item) | inspect.VarTupleType(item_type=item), list():
            return [_changed(each, item, change) for each in value]
        case inspect.UnionType(types=types), _:
            for each in types:
                value = _changed(value, each, change)
    return value


def _set_apart(fields: Fields, names: frozenset[str]) -> Fields:
    unknown = {name: value for name, value in fields.items() if name not in names}
    if not unknown:
        return fields
    declared = {name: value for name, value in fields.items() if name in names}
    return declared | {_UNKNOWN: msgspec.msgpack.encode(unknown)}


def _merge(fields: Fields, names: frozenset[str]) -> Fields:
    unknown = fields.pop(_UNKNOWN, NO_FIELDS)
    try:  # an import may have any bytes here
        more = msgspec.msgpack.decode(unknown, type=dict[str, Any])
    except (
        msgspec.DecodeError,
        UnicodeDecodeError,
        RecursionError,
    ):
        more = {}
    return {name: value for name, value in more.items() if name not in names} | fields
