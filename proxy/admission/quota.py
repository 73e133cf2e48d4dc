"""How much each key may ask for: requests and tokens in a minute, and turns at once."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from proxy.admission.tally import Tally
from proxy.admission.windows import Allowance
from proxy.edge.reply import Reply
from proxy.errors import LimitExceeded
from proxy.memory.stores.counts import Counts
from proxy.observe.observation import usage_of

_BYTES_OF_A_TOKEN = 4


class Quota:
    """Counts by tenant, the name of a key, in windows of a minute that begin with their first request.

    Counts may be shared with other servers; turns at once are this process's own. Where ``counts`` fail,
    or take longer than ``deadline`` seconds if there is one, this process counts alone until they are back.
    """

    def __init__(
        self,
        limits: Allowance,
        counts: Counts | None = None,
        *,
        deadline: float | None = None,
        refused: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._limits = limits
        self._tally = Tally(limits, counts, deadline=deadline)
        self._refused = refused
        self._open: Counter[str] = Counter()
        self._spending: set[asyncio.Task[None]] = set()

    @property
    def degraded(self) -> bool:
        """Whether this process counts alone what all servers should count together."""
        return self._tally.alone

    @asynccontextmanager
    async def turn(self, tenant: str, asked: int, reply: Reply) -> AsyncIterator[None]:
        """Admits a turn of ``asked`` bytes, for as long as it is entered, and counts what it took.

        Raises LimitExceeded. The answer's headers say what is left.
        """
        self._take_place(tenant)
        try:
            await self._admit(tenant, reply)
            yield
        finally:
            self._open[tenant] -= 1
            if self._limits.tokens_per_minute and reply.watch.sent:
                self._spend(tenant, _taken(reply, asked))

    async def aclose(self) -> None:
        """Counts what is yet to be counted, then lets the counts go."""
        await asyncio.gather(*self._spending)
        await self._tally.aclose()

    def _take_place(self, tenant: str) -> None:
        # Taken before anybody is waited for: of a burst, all would find the same place free.
        most = self._limits.concurrent_streams
        if most and self._open[tenant] >= most:
            self._refuse("streams", f"This key may have {most} answers at once.", 1.0)
        self._open[tenant] += 1

    async def _admit(self, tenant: str, reply: Reply) -> None:
        left = await self._tally.asked(tenant)
        if self._tally.alone:
            reply.degraded("limits")
        for kind, each in left.items():
            reply.add(f"x-ratelimit-limit-{kind}", str(each.limit))
            reply.add(f"x-ratelimit-remaining-{kind}", str(max(0, each.remaining)))
            reply.add(f"x-ratelimit-reset-{kind}", duration(each.reset))
        for kind, each in left.items():
            if each.remaining < 0:
                self._refuse(kind, f"This key may have {each.limit} {kind} in a minute.", each.reset)

    def _refuse(self, kind: str, message: str, after: float) -> None:
        self._refused(kind)
        raise LimitExceeded(message, kind=kind, retry_after=after)

    def _spend(self, tenant: str, tokens: int) -> None:
        task = asyncio.get_running_loop().create_task(self._tally.spend(tenant, tokens))
        self._spending.add(task)
        task.add_done_callback(self._spending.discard)


def duration(seconds: float) -> str:
    """A length of time as OpenAI's headers have it: 120ms, 8.64s, 6m0s."""
    milliseconds = round(seconds * 1000)
    if milliseconds < 1000:  # noqa: PLR2004
        return f"{milliseconds}ms"
    minutes, rest = divmod(milliseconds, 60_000)
    return f"{minutes}m{rest // 1000}s" if minutes else f"{rest / 1000:g}s"


def _taken(reply: Reply, asked: int) -> int:
    """The upstream's own count, or a guess: four bytes of a prompt are a token, and so is each piece sent."""
    counted = usage_of(reply.watch.sent)
    if counted.input is not None or counted.output is not None:
        return (counted.input or 0) + (counted.output or 0)
    return asked // _BYTES_OF_A_TOKEN + len(reply.watch.sent)
