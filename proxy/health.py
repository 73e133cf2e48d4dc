"""How an upstream fares, model by model."""

import time
from collections.abc import Callable, Mapping

from proxy.breaker import Breaker, State

# Clients may name any model: beyond this many, the one that was named first is forgotten.
_MOST_MODELS = 100


class Health:
    """One upstream's breakers: one for each model, one for the way to it. ``clock`` tells rising seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._way = Breaker(clock)
        self._breakers: dict[str, Breaker] = {}

    def of(self, model: str) -> Breaker:
        """The breaker of one model."""
        breaker = self._breakers.get(model)
        if breaker is None:
            if len(self._breakers) >= _MOST_MODELS:
                del self._breakers[next(iter(self._breakers))]
            breaker = self._breakers[model] = Breaker(self._clock)
        return breaker

    def unreachable(self) -> None:
        """There was no connection: no model of it can be asked, also one that nobody has named yet."""
        self._way.failed()

    def reached(self) -> None:
        """It answered, be it with an error."""
        self._way.begun()
        self._way.succeeded()

    def states(self) -> Mapping[str, State]:
        """How each model stands that was asked for lately: for metrics, and whoever looks on."""
        return {model: breaker.state for model, breaker in self._breakers.items()}

    @property
    def degraded(self) -> bool:
        """Whether it, or any of its models, is passed over, or on trial."""
        return self._way.state != "closed" or any(state != "closed" for state in self.states().values())

    @property
    def down(self) -> bool:
        """Whether it cannot be reached, or no model that was asked for works, and no probe is due."""
        states = self.states()
        return self._way.state == "open" or (bool(states) and all(s == "open" for s in states.values()))
