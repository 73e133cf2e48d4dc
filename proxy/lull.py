"""A pause for one kind of work while what it needs is away: then one try at a time, ever later."""

import asyncio

_PATIENCE = 3
_SHORTEST, _LONGEST = 5.0, 60.0


class Lull:
    """Counts failures in a row; after three of them who comes anew waits, and goes on one by one."""

    def __init__(self) -> None:
        self.failures = 0
        self._until = 0.0

    async def over(self) -> int:
        """Returns at once while all is well, else when it is this one's turn to try: failures so far."""
        clock = asyncio.get_running_loop().time
        while (left := self._until - clock()) > 0:  # noqa: ASYNC110 - it may be put off meanwhile
            await asyncio.sleep(left)
        if self.failures >= _PATIENCE:
            self._until = clock() + self._pause
        return self.failures

    def since(self, failures: int) -> bool:
        """Whether it has begun, or gone on, since there were so many failures."""
        return self.failures > failures and self.failures >= _PATIENCE

    def failed(self) -> None:
        """One more try has failed."""
        self.failures += 1
        if self.failures >= _PATIENCE:
            self._until = asyncio.get_running_loop().time() + self._pause

    def succeeded(self) -> None:
        """All is well again."""
        self.failures, self._until = 0, 0.0

    @property
    def _pause(self) -> float:
        return float(min(_LONGEST, _SHORTEST * 2 ** (self.failures - _PATIENCE)))
