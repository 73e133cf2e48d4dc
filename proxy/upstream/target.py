"""An upstream with its model and limits, and the health of each model."""

import logging
import time
from collections.abc import Callable, Mapping
from functools import partial

import msgspec

from proxy.answer.response import Headers
from proxy.circuit import Backoff, CircuitBreaker, CircuitState
from proxy.upstream.client import Upstream
from proxy.upstream.providers import Provider

# Clients may name any model: beyond this number, the breaker of the oldest one is dropped.
_MOST_MODELS = 100
_FAILURES = 5
# A model that works again is noticed within 30 seconds.
_BACKOFF = Backoff(shortest=4.0, longest=16.0)
_log = logging.getLogger("turnkeeper")


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """An upstream with the model to ask, its headers, retries and time limits in seconds.

    ``secrets`` are the parts of the headers that no client may see.
    """

    name: str
    health: "Health"
    upstream: Upstream
    provider: Provider
    headers: Headers
    secrets: tuple[bytes, ...] = ()
    model: str | None = None
    allow: frozenset[str] = frozenset()
    forward_headers: tuple[str, ...] = ()
    forward_key: bool = False
    first_token: float
    first_content: float | None = None
    total: float
    retries: int = 0

    @property
    def begins_within(self) -> float:
        """How long one attempt may take to begin its answer, in seconds."""
        return max(self.first_token, self.first_content or 0.0)


class Health:
    """One upstream's circuit breakers: one for each model, and one for the ``connection`` to it.

    Their opening and closing is logged. ``clock`` returns monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, *, name: str = "") -> None:
        self._clock = clock
        self._name = name
        self.connection = CircuitBreaker(
            _BACKOFF, threshold=_FAILURES, clock=clock, on_change=self._log_connection
        )
        self._breakers: dict[str, CircuitBreaker] = {}
        self._logged: set[str] = set()

    def breaker(self, model: str) -> CircuitBreaker:
        """The circuit breaker of one model."""
        breaker = self._breakers.get(model)
        if breaker is None:
            if len(self._breakers) >= _MOST_MODELS:
                del self._breakers[first := next(iter(self._breakers))]
                self._logged.discard(first)
            on_change = partial(self._log_model, model)
            breaker = CircuitBreaker(_BACKOFF, threshold=_FAILURES, clock=self._clock, on_change=on_change)
            self._breakers[model] = breaker
        return breaker

    def record_unreachable(self) -> None:
        """Records that no connection could be made, for any model."""
        self.connection.record_failure()

    def record_answer(self) -> None:
        """Records that the upstream answered, even if with an error."""
        self.connection.record_answer()
        self.connection.record_success()

    def states(self) -> Mapping[str, CircuitState]:
        """The circuit state of each model that was asked for lately."""
        return {model: breaker.state for model, breaker in self._breakers.items()}

    @property
    def degraded(self) -> bool:
        """Whether any circuit is open or half open."""
        return self.connection.state != "closed" or any(state != "closed" for state in self.states().values())

    @property
    def down(self) -> bool:
        """Whether no call passes: no connection can be made, or the circuits of all models are open."""
        states = self.states()
        return self.connection.state == "open" or (bool(states) and all(s == "open" for s in states.values()))

    def _log_connection(self, failing: bool) -> None:  # noqa: FBT001 - the breaker's callback
        if failing:
            _log.warning(
                "The upstream '%s' cannot be reached; it is tried again every few seconds", self._name
            )
        else:
            _log.warning("The upstream '%s' can be reached again", self._name)

    def _log_model(self, model: str, failing: bool) -> None:  # noqa: FBT001 - the breaker's callback
        """Log a model's change, unless the upstream cannot be reached; the name is the client's, and cut."""
        if failing and self.connection.state == "closed":
            self._logged.add(model)
            what = "fails for the model %.100r; it is tried again every few seconds"
        elif not failing and model in self._logged:
            self._logged.discard(model)
            what = "works again for the model %.100r"
        else:
            return
        _log.warning(f"The upstream '%s' {what}", self._name, model)
