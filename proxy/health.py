"""How an upstream fares, model by model."""

import time
from collections.abc import Callable, Mapping

from proxy.breaker import Breaker, State

# Clients may name any model: beyond this many, the one that was named first is forgotten.
_MOST_MODELS = 100


class Health:
    """One upstream's breakers, by model. ``clock`` tells seconds, and only rises."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._breakers: dict[str, Breaker] = {}

    def of(self, model: str) -> Breaker:
        """The breaker of one model."""
        breaker = self._breakers.get(model)
        if breaker is None:
            if len(self._breakers) >= _MOST_MODELS:
                del self._breakers[next(iter(self._breakers))]
            breaker = self._breakers[model] = Breaker(self._clock)
        return breaker

    def states(self) -> Mapping[str, State]:
        """How each model stands that was asked for lately: for metrics, and whoever looks on."""
        return {model: breaker.state for model, breaker in self._breakers.items()}

    @property
    def degraded(self) -> bool:
        """Whether any of its models is passed over, or on trial."""
        return any(state != "closed" for state in self.states().values())

    @property
    def down(self) -> bool:
        """Whether no model of it that was asked for works, and no probe is due."""
        states = self.states()
        return bool(states) and all(state == "open" for state in states.values())
