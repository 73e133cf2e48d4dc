"""The background process, for work that no call waits for, beside the processes that serve."""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final

from uvicorn.loops.auto import auto_loop_factory

from proxy.memory.tasks import cancel_and_wait, ignore_late_lookups
from proxy.observe.log import logging_to
from proxy.runtime import Generation, Runtime
from proxy.server import signals
from proxy.server.bus import BackgroundMessage, Bus, BusMessage, Inbox, WrittenMessage, end_with_parent
from proxy.settings.settings import Settings

_REPORT_EVERY: Final = 1.0
# In seconds. No call waits for this loop, but turns may wait for the thread that writes: it releases the
# interpreter with each statement, and keeps an SQLite file locked until it runs again.
_SWITCH_INTERVAL: Final = 0.0001

Loaded = tuple[Settings, Runtime]
Reload = Callable[[], Loaded | None]
"""Reads the configuration again; ``None`` if the former one stays in use."""
Working = Callable[[Generation], AbstractAsyncContextManager[None]]


def run(loaded: Loaded, reload: Reload, working: Working) -> None:
    """Does background work until SIGTERM or SIGINT; SIGHUP reloads the configuration."""
    sys.setswitchinterval(_SWITCH_INTERVAL)
    with asyncio.Runner(loop_factory=auto_loop_factory()) as runner:
        runner.run(_work(loaded, reload, working))


async def _work(loaded: Loaded, reload: Reload, working: Working) -> None:
    settings, runtime = loaded
    loop, received = asyncio.get_running_loop(), asyncio.Queue[int]()
    ignore_late_lookups(loop)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, received.put_nowait, number)
    signals.unblock()
    while True:
        with logging_to(sys.stderr, form=settings.log.format, level=settings.log.level):
            generation = Generation(runtime)
            if runtime.clock:
                await runtime.clock.start()
                generation.follow_clock()
            async with working(generation):
                reloaded = None
                while reloaded is None and await received.get() == signal.SIGHUP:
                    reloaded = reload()
            await generation.close()
        if reloaded is None:
            return
        if (reloaded[0].memory, reloaded[0].keys) == (settings.memory, settings.keys):
            reloaded[1].take_over_background(runtime)
        settings, runtime = reloaded


class ServersLink:
    """Receives the sessions that servers wrote in ``inbox``, and reports failing jobs to ``servers``.

    The process ends with the first process, which closes ``lifeline``.
    """

    def __init__(self, inbox: Inbox, servers: Sequence[Inbox], lifeline: int) -> None:
        self._bus = Bus([*servers, inbox], own=len(servers))
        self._lifeline = lifeline

    @asynccontextmanager
    async def working(self, generation: Generation) -> AsyncIterator[None]:
        """Does background work within the context; at its end, reads the last sessions from the inbox."""
        runtime, loop = generation.runtime, asyncio.get_running_loop()
        if runtime.memory is None:  # no server would write anything
            yield
            return
        memory = runtime.memory

        def receive(message: BusMessage) -> None:
            if isinstance(message, WrittenMessage):
                for key, due in message.sessions:
                    memory.writer.session_written(key, due)
                if message.incomplete:
                    memory.compare()

        end_with_parent(self._lifeline)
        generation.start_background()
        self._bus.receive(receive)
        report = loop.create_task(self._report(runtime))
        try:
            yield
        finally:
            await cancel_and_wait(report)
            self._bus.stop_receiving()  # later messages are for the next generation
            self._bus.read(receive)

    async def _report(self, runtime: Runtime) -> None:
        while True:
            self._bus.send(BackgroundMessage(runtime.background_failures))
            await asyncio.sleep(_REPORT_EVERY)
