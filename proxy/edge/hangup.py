"""A client that leaves takes its turn with it (law: a hang-up reaches the model)."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from typing import Any

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]


class ClientGone(Exception):
    """The client closed its connection; nobody is there to be answered."""


async def until_gone(receive: Receive, turn: Coroutine[Any, Any, None]) -> None:
    """Runs the turn; cancels it as soon as the client has left, and then raises ClientGone.

    The request's body must have been received: whatever ``receive`` says next is the end.
    """
    owner = asyncio.current_task()
    assert owner is not None  # noqa: S101
    gone = False

    def leave(_: object) -> None:
        nonlocal gone
        gone = True
        owner.cancel()

    watch = asyncio.ensure_future(receive())
    watch.add_done_callback(leave)
    try:
        await turn
    except asyncio.CancelledError:
        if gone and not owner.uncancel():
            raise ClientGone from None
        raise
    finally:
        watch.remove_done_callback(leave)
        watch.cancel()
