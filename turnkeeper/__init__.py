"""What a filter of one's own imports: ``from turnkeeper import Context, Messages, RequestFilter``."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from filters.base import (
        AnswerFilter,
        Context,
        Delta,
        Example,
        Fields,
        Messages,
        RequestFilter,
        Snapshot,
        Spoken,
        Stage,
    )
    from filters.message import Message

__all__ = (
    "AnswerFilter",
    "Context",
    "Delta",
    "Example",
    "Fields",
    "Message",
    "Messages",
    "RequestFilter",
    "Snapshot",
    "Spoken",
    "Stage",
)


def __getattr__(name: str) -> Any:
    # When it is first used: the command imports this package before it has its signals in order.
    if name not in __all__:
        raise AttributeError(f"module 'turnkeeper' has no attribute {name!r}")
    return getattr(import_module("filters.message" if name == "Message" else "filters.base"), name)
