"""How an upstream fares, model by model."""

import logging
import time
from collections.abc import Callable, Mapping
from functools import partial

import msgspec

from proxy.answer.response import Headers
from proxy.circuit import Backoff, CircuitBreaker, CircuitState
from proxy.upstream.client import Upstream
from proxy.upstream.providers import Provider

# Clients may name any model: beyond this many, the one that was named first is forgotten.
_MOST_MODELS = 100
# A model that is well again is found out within 30 seconds.
_FAILURES = 5
_BACKOFF = Backoff(shortest=4.0, longest=16.0)
_log = logging.getLogger("turnkeeper")


class Health:
    """One upstream's breakers: one for each model, one for the way to it. ``clock`` tells rising seconds.

    That one opens is logged, and that it is closed again.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, *, name: str = "") -> None:
        self._clock = clock
        self._name = name
        self._way = CircuitBreaker(_BACKOFF, threshold=_FAILURES, clock=clock, on_change=self._tell_of_way)
        self._breakers: dict[str, CircuitBreaker] = {}
        self._told: set[str] = set()

    def breaker(self, model: str) -> CircuitBreaker:
        """The breaker of one model."""
        breaker = self._breakers.get(model)
        if breaker is None:
            if len(self._breakers) >= _MOST_MODELS:
                del self._breakers[first := next(iter(self._breakers))]
                self._told.discard(first)
            breaker = self._breakers[model] = CircuitBreaker(
                _BACKOFF, threshold=_FAILURES, clock=self._clock, on_change=partial(self._tell_of, model)
            )
        return breaker

    def unreachable(self) -> None:
        """There was no connection: no model of it can be asked, also one that nobody has named yet."""
        self._way.failed()

    def reached(self) -> None:
        """It answered, be it with an error."""
        self._way.answered()
        self._way.succeeded()

    def states(self) -> Mapping[str, CircuitState]:
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

    def _tell_of_way(self, failing: bool) -> None:  # noqa: FBT001 - as a breaker tells it
        if failing:
            _log.warning(
                "The upstream '%s' cannot be reached; it is tried again every few seconds", self._name
            )
        else:
            _log.warning("The upstream '%s' can be reached again", self._name)

    def _tell_of(self, model: str, failing: bool) -> None:  # noqa: FBT001 - as a breaker tells it
        """Nothing of a model to which there is no way; its name is the caller's, and may be long."""
        if failing and self._way.state == "closed":
            self._told.add(model)
            what = "fails for the model %.100r; it is tried again every few seconds"
        elif not failing and model in self._told:
            self._told.discard(model)
            what = "works again for the model %.100r"
        else:
            return
        _log.warning(f"The upstream '%s' {what}", self._name, model)


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """A model's address, and how it wants to be talked to. Times are in seconds.

    ``secrets`` are what of the headers no client may be told.
    """

    name: str
    health: Health
    upstream: Upstream
    provider: Provider
    headers: Headers
    secrets: tuple[bytes, ...] = ()
    model: str | None = None
    models: tuple[str, ...] = ()
    allow: frozenset[str] = frozenset()
    forward_headers: tuple[str, ...] = ()
    forward_key: bool = False
    first_token: float
    first_content: float | None = None
    total: float
    retries: int = 0

    @property
    def patience(self) -> float:
        """How long it may take to answer, where it is asked once."""
        return max(self.first_token, self.first_content or 0.0)
