"""A client that leaves takes its turn with it (law: a hang-up reaches the model)."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from typing import Any

from proxy.http.reply import Outlet

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]


class ClientDisconnected(Exception):
    """The client closed its connection; nobody is there to be answered."""


async def run_until_disconnect(
    receive: Receive, turn: Coroutine[Any, Any, None], outlet: Outlet | None = None
) -> None:
    """Runs the turn; cancels it as soon as the client has left, and then raises ClientGone.

    The request's body must have been received: without an ``outlet``, which tells at less cost, whatever
    ``receive`` says next is the end.
    """
    owner = asyncio.current_task()
    assert owner is not None  # noqa: S101
    gone = False

    def leave() -> None:
        nonlocal gone
        gone = True
        owner.cancel()

    stop = outlet.on_disconnect(leave) if outlet else _asking(receive, leave)
    try:
        await turn
    except asyncio.CancelledError:
        if gone and not owner.uncancel():
            raise ClientDisconnected from None
        raise
    finally:
        stop()


def _asking(receive: Receive, leave: Callable[[], None]) -> Callable[[], None]:
    """Calls ``leave`` once a server without an outlet has said anything more; what is returned ends that."""
    watch = asyncio.ensure_future(receive())

    def left(_: object) -> None:
        leave()

    def stop() -> None:
        watch.remove_done_callback(left)
        watch.cancel()

    watch.add_done_callback(left)
    return stop
