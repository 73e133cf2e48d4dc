"""What is told of one turn: to the metrics, to the log and to whoever looks on."""

from typing import Final, Literal

import msgspec

from proxy.telemetry.tries import Tries

Outcome = Literal["done", "hangup", "superseded", "failed"]
"""How a turn ended; ``hangup`` is the client's leaving."""

State = Literal["streaming", "done", "degraded", "interrupted", "cancelled", "failed"]
"""Where a turn stands: ``degraded`` is done with something left out, ``interrupted`` is left or superseded
after its first token, and ``cancelled`` before it."""

OWN_STAGES: Final = frozenset({"recall", "filters"})


class Account(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One turn, with no word of what was said in it.

    ``at`` is when the request arrived, in seconds since 1970; the other times are lengths in seconds, and
    ``lead`` is what went by before the first stage. ``status`` and ``code`` are the client's. ``outcome`` is
    ``None`` while the answer streams. Tokens are the upstream's own count, ``None`` where it gives none.
    ``wanted`` is the model that the pipeline's first upstream would be asked for; ``fell_back`` is whether
    another one answered.
    """

    id: str
    request: str
    at: float
    tenant: str
    pipeline: str
    session: str | None
    user: str | None
    turn: int | None
    upstream: str | None
    model: str | None
    outcome: Outcome | None
    status: int
    code: str | None
    lead: float
    stages: tuple[tuple[str, float], ...]
    filters: tuple[tuple[str, float], ...]
    first_token: float | None
    duration: float
    input_tokens: int | None
    output_tokens: int | None
    degraded: tuple[str, ...]
    ignored: tuple[str, ...]
    tries: Tries
    fell_back: bool
    wanted: str | None = None

    @property
    def state(self) -> State:
        """Where the turn stands, in one word."""
        if self.outcome is None:
            return "streaming"
        if self.outcome == "done":
            return "degraded" if self.degraded else "done"
        if self.outcome == "failed":
            return "failed"
        return "cancelled" if self.first_token is None else "interrupted"

    @property
    def overhead(self) -> float:
        """What the turn took within the proxy before the model was asked."""
        return sum(seconds for stage, seconds in self.stages if stage in OWN_STAGES)
