"""One request, watched on its way: what is noted costs next to nothing, and is told when nobody waits."""

import secrets
import time
from collections.abc import Callable, Sequence

from filters.message import Message
from proxy.telemetry.account import Account, Outcome
from proxy.telemetry.clock import Clock
from proxy.telemetry.lineage import Lineage
from proxy.telemetry.tries import Tries
from proxy.telemetry.usage import usage_of


class Watch:
    """What is known of a request so far; of a turn from ``turn_of`` on.

    ``tell`` is called with a turn's account when its first token has gone out, and when it has ended.
    ``ignored`` tells of what could not be used of it, once it has ended.
    ``stamps`` are when each part of ``sent`` went out, by ``time.perf_counter``; ``content`` is what was
    said, for whoever knows its form, and ``size`` how many bytes were asked. ``failure`` is what the client
    was told of a failure, and ``reason`` what the log may say of it.
    """

    def __init__(
        self,
        request: str,
        tell: Callable[["Watch"], None] = lambda _: None,
        id: str = "",  # noqa: A002
    ) -> None:
        self.clock = Clock()
        self.id = id or f"turn_{secrets.token_hex(8)}"
        self.request = request
        self.status = 0
        self.code: str | None = None
        self.outcome: Outcome | None = None
        self.first_token: float | None = None
        self.pipeline: str | None = None
        self.tenant = "default"
        self.session: str | None = None
        self.user: str | None = None
        self.turn: int | None = None
        self.model: str | None = None
        self.wanted: str | None = None
        self.upstream: str | None = None
        self.tries = Tries()
        self.fell_back, self.size = False, 0
        self.degraded: list[str] = []
        self.ignored: Callable[[], Sequence[str]] = tuple
        self.asked: Sequence[Message] = ()
        self.filters: list[tuple[str, float]] = []
        self.sent: list[bytes] = []
        self.stamps: list[float] = []
        self.failure: str | None = None
        self.reason: str | None = None
        self.content: object = None
        self.lineage: Lineage | None = None
        self._at = time.time()
        self._lasted: float | None = None
        self._tell = tell

    def turn_of(self, tenant: str, pipeline: str) -> None:
        """From here on the request is a turn."""
        self.tenant, self.pipeline = tenant, pipeline

    def answered(self) -> None:
        """The first delta that carries anything is on its way to the client."""
        self.first_token = self.clock.passed()
        self._tell(self)

    def end(self, otherwise: Outcome) -> None:
        """The turn has ended; ``otherwise`` is how, where nothing else was noted."""
        if self.pipeline is not None:
            self.outcome = self.outcome or otherwise
            self._lasted = self.clock.passed()
            self._tell(self)

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
            at=self._at,
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
