"""The time between two configurations: what calls are answered with, and the calls that began in it."""

import asyncio
from types import TracebackType

from proxy.background.worker import EVERY
from proxy.parts import Parts


class Era:
    """Parts in use. A call enters and leaves; what ends waits for those inside."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self._calls = 0
        self._work: asyncio.Task[None] | None = None
        self._loading: list[asyncio.Task[None]] = []
        self._empty = asyncio.Event()
        self._empty.set()

    def __enter__(self) -> Parts:
        self._calls += 1
        self._empty.clear()
        return self.parts

    def __exit__(
        self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None
    ) -> None:
        self._calls -= 1
        if not self._calls:
            self._empty.set()

    def begin(self, *, every: float = EVERY) -> None:
        """Begins the work in the background; the store is looked through ``every`` so many seconds."""
        if self.parts.worker:
            self._work = asyncio.get_running_loop().create_task(self.parts.worker.run(every=every))

    @property
    def lost_turns(self) -> int:
        """How many turns memory has not taken."""
        return self.parts.memory.recorder.lost_turns if self.parts.memory else 0

    def load(self) -> None:
        """Begins what no call waits for, such as opening the ways to the models and looking after memory."""
        loading = [upstream.keep_warm() for upstream in self.parts.upstreams]
        if self.parts.exact:
            loading.append(self.parts.exact.ready())
        if self.parts.graves:
            loading.append(self.parts.graves.look())
        if self.parts.memory:
            loading.append(self.parts.memory.pulse.run())
        self._loading = [asyncio.get_running_loop().create_task(each) for each in loading]

    async def end(self) -> None:
        """Ends the work at once, and closes memory and the ways to the models once the last call has left."""
        if self._work:
            self._work.cancel()
            await asyncio.wait({self._work})
        for each in self._loading:
            each.cancel()
        await self._empty.wait()
        if self.parts.quota:
            await self.parts.quota.aclose()
        if self.parts.memory:
            await self.parts.memory.aclose()
        for upstream in self.parts.upstreams:
            await upstream.aclose()
        if self.parts.tracing:
            await asyncio.to_thread(self.parts.tracing.close)
