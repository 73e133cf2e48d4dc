"""One request, watched on its way: what is noted costs next to nothing, and is told when nobody waits."""

import secrets
import time
from collections.abc import Callable, Sequence

import msgspec

from filters.message import Message
from proxy.telemetry.account import Account, Outcome
from proxy.telemetry.clock import Clock
from proxy.telemetry.lineage import Lineage
from proxy.telemetry.tries import Tries
from proxy.telemetry.usage import usage_of


class Watch(msgspec.Struct, eq=False):
    """What is known of a request so far; of a turn from ``turn_of`` on.

    ``tell`` is called with a turn's account when its first token has gone out, and when it has ended.
    ``ignored`` tells of what could not be used of it, once it has ended.
    ``stamps`` are when each part of ``sent`` went out, by ``time.perf_counter``; ``content`` is what was
    said, for whoever knows its form, and ``size`` how many bytes were asked.
    """

    request: str
    tell: Callable[["Watch"], None] = lambda _: None
    id: str = ""
    at: float = 0.0
    clock: Clock = msgspec.field(default_factory=Clock)
    status: int = 0
    code: str | None = None
    outcome: Outcome | None = None
    first_token: float | None = None
    pipeline: str | None = None
    tenant: str = "default"
    session: str | None = None
    user: str | None = None
    turn: int | None = None
    model: str | None = None
    wanted: str | None = None
    upstream: str | None = None
    tries: Tries = msgspec.field(default_factory=Tries)
    fell_back: bool = False
    degraded: list[str] = []
    ignored: Callable[[], Sequence[str]] = tuple
    asked: Sequence[Message] = ()
    filters: list[tuple[str, float]] = []
    sent: list[bytes] = []
    stamps: list[float] = []
    failure: str | None = None
    content: object = None
    size: int = 0
    lineage: Lineage | None = None
    _lasted: float | None = None

    def __post_init__(self) -> None:
        self.id = self.id or f"turn_{secrets.token_hex(8)}"
        self.at = self.at or time.time()

    def turn_of(self, tenant: str, pipeline: str) -> None:
        """From here on the request is a turn."""
        self.tenant, self.pipeline = tenant, pipeline

    def answered(self) -> None:
        """The first delta that carries anything is on its way to the client."""
        self.first_token = self.clock.passed()
        self.tell(self)

    def end(self, otherwise: Outcome) -> None:
        """The turn has ended; ``otherwise`` is how, where nothing else was noted."""
        if self.pipeline is not None:
            self.outcome = self.outcome or otherwise
            self._lasted = self.clock.passed()
            self.tell(self)

    @property
    def lasted(self) -> float:
        """How long it took, in seconds; until it has ended, so far."""
        return self.clock.passed() if self._lasted is None else self._lasted

    def account(self) -> Account:
        """All that is known now."""
        tokens = usage_of(self.sent)
        return Account(
            id=self.id,
            request=self.request,
            at=self.at,
            tenant=self.tenant,
            pipeline=self.pipeline or "",
            session=self.session,
            user=self.user,
            turn=self.turn,
            upstream=self.upstream,
            model=self.model,
            outcome=self.outcome,
            status=self.status,
            code=self.code,
            lead=self.clock.marks[0][1] - self.clock.began if self.clock.marks else 0.0,
            stages=tuple(self.clock.stages),
            filters=tuple(self.filters),
            first_token=self.first_token,
            duration=self.lasted,
            input_tokens=tokens.input,
            output_tokens=tokens.output,
            degraded=tuple(self.degraded),
            ignored=tuple(self.ignored()) if self.outcome else (),
            tries=self.tries,
            fell_back=self.fell_back,
            wanted=self.wanted,
        )
