"""Who counts what keys ask for: all servers together, or this process while they cannot."""

import asyncio
import logging
from typing import Final

from limits.aio.storage import Storage

from proxy.admission.counts import OwnCounts
from proxy.admission.windows import Allowance, Left, Windows
from proxy.memory.faults import StoreError

_REST: Final = 1.0
_log: Final = logging.getLogger("turnkeeper")


class Tally:
    """Counts in the process where ``shared`` is ``None``, and for as long as that fails.

    It has failed where it raises StoreError, or takes longer than ``deadline`` seconds if there is one. It
    is then asked once a second, beside the calls, until it counts again.
    """

    def __init__(self, limits: Allowance, shared: Storage | None, *, deadline: float | None = None) -> None:
        self._own = Windows(limits, OwnCounts())
        self._shared = Windows(limits, shared) if shared else None
        self._deadline = deadline
        self._probe: asyncio.Task[None] | None = None

    @property
    def alone(self) -> bool:
        """Whether this process counts by itself what all servers should count together."""
        return self._probe is not None and not self._probe.done()

    async def asked(self, tenant: str) -> dict[str, Left]:
        """What is left of each limit, once this request has been counted."""
        if self._shared and not self.alone:
            try:
                async with asyncio.timeout(self._deadline):
                    return await self._shared.asked(tenant)
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
        """Ends the probe, then lets the storages go."""
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
            self._probe = asyncio.create_task(self._watch(shared, tenant))

    async def _watch(self, shared: Windows, tenant: str) -> None:
        """Until it counts for the tenant that it failed for: of a cluster, others may be well."""
        while True:
            await asyncio.sleep(_REST)
            if await self._counts(shared, tenant):
                _log.warning("Limits are counted on Redis again")
                return

    async def _counts(self, shared: Windows, tenant: str) -> bool:
        try:
            async with asyncio.timeout(self._deadline):
                await shared.spend(tenant, 0)
        except (StoreError, TimeoutError):
            return False
        return True
