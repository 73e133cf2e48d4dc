"""Cancels a turn when its client disconnects."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from starlette.types import Receive

from proxy.http.reply import Outlet


class ClientDisconnected(Exception):
    """The client has closed its connection, and can no longer be answered."""


async def run_until_disconnect(
    receive: Receive, turn: Coroutine[Any, Any, None], outlet: Outlet | None = None
) -> None:
    """Runs a turn; once the client disconnects, cancels it and raises ClientDisconnected.

    The request's body must have been received: without an ``outlet``, which costs less, the next message of
    ``receive`` is taken for the disconnect.
    """
    task = asyncio.current_task()
    assert task is not None  # noqa: S101
    disconnected = False

    def disconnect() -> None:
        nonlocal disconnected
        disconnected = True
        task.cancel()

    stop = outlet.on_disconnect(disconnect) if outlet else _on_message(receive, disconnect)
    try:
        await turn
    except asyncio.CancelledError:
        if disconnected and not task.uncancel():
            raise ClientDisconnected from None
        raise
    finally:
        stop()


def _on_message(receive: Receive, callback: Callable[[], None]) -> Callable[[], None]:
    """Calls ``callback`` at the next message; the function that is returned ends that."""
    message = asyncio.ensure_future(receive())

    def done(_: object) -> None:
        callback()

    def stop() -> None:
        message.remove_done_callback(done)
        message.cancel()

    message.add_done_callback(done)
    return stop
