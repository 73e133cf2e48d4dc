"""Who counts what keys ask for: all servers together, or this process while they cannot."""

import asyncio
import logging
import math
import time
from typing import Final

from proxy.admission.windows import Allowance, Left, Windows
from proxy.memory.errors import StoreError
from proxy.memory.stores.counts import Counts, OwnCounts
from proxy.memory.tasks import wait_for

_REST: Final = 1.0
_LONGEST_REST: Final = 60.0
_SOON: Final = 60.0
_log: Final = logging.getLogger("turnkeeper")


class Tally:
    """Counts in the process where ``shared`` is ``None``, and for as long as that fails.

    It has failed where it raises StoreError, or takes longer than ``deadline`` seconds if there is one. It
    is then asked every ``rest`` seconds, beside the calls, until it counts again; where it fails again
    within a minute it has twice the rest, up to a minute, so that it does not come and go all the time.
    """

    def __init__(
        self,
        limits: Allowance,
        shared: Counts | None,
        *,
        deadline: float | None = None,
        rest: float = _REST,
    ) -> None:
        self._own = Windows(limits, OwnCounts())
        self._shared = Windows(limits, shared) if shared else None
        self._deadline = deadline
        self._probe: asyncio.Task[None] | None = None
        self._rest = self._shortest = rest
        self._back = -math.inf

    @property
    def alone(self) -> bool:
        """Whether this process counts by itself what all servers should count together."""
        return self._probe is not None and not self._probe.done()

    async def asked(self, tenant: str) -> dict[str, Left]:
        """What is left of each limit, once this request has been counted."""
        if self._shared and not self.alone:
            try:
                return await wait_for(self._shared.asked(tenant), self._deadline)
            except (StoreError, TimeoutError) as error:
                self._fails(self._shared, tenant, error)
        return await self._own.asked(tenant)

    async def spend(self, tenant: str, tokens: int) -> None:
        """So many tokens have been taken."""
        if self._shared and not self.alone:
            try:
                await self._shared.spend(tenant, tokens)
            except StoreError as error:
                self._fails(self._shared, tenant, error)
            else:
                return
        await self._own.spend(tenant, tokens)

    async def aclose(self) -> None:
        """Ends the probe, then lets the counts go."""
        if self._probe:
            self._probe.cancel()
            await asyncio.wait({self._probe})
        if self._shared:
            await self._shared.aclose()

    def _fails(self, shared: Windows, tenant: str, error: Exception) -> None:
        if not self.alone:
            _log.warning(
                "Limits are counted in this process alone: %s", str(error) or "nobody counts in time"
            )
            came_and_went = time.monotonic() < self._back + _SOON
            self._rest = min(2 * self._rest, _LONGEST_REST) if came_and_went else self._shortest
            self._probe = asyncio.create_task(self._watch(shared, tenant))

    async def _watch(self, shared: Windows, tenant: str) -> None:
        """Until it counts for the tenant that it failed for: of a cluster, others may be well."""
        while True:
            await asyncio.sleep(self._rest)
            if await self._counts(shared, tenant):
                self._back = time.monotonic()
                _log.warning("Limits are counted on Redis again")
                return

    async def _counts(self, shared: Windows, tenant: str) -> bool:
        try:
            await wait_for(shared.spend(tenant, 0), self._deadline)
        except (StoreError, TimeoutError):
            return False
        return True
