"""Routing: which upstream is asked, how often and for how long, until one begins to answer."""

import asyncio
from collections.abc import Sequence

import msgspec

from proxy.answer.response import Response
from proxy.circuit import Backoff, CircuitBreaker
from proxy.errors import (
    UpstreamError,
    UpstreamRefused,
    UpstreamTimeout,
    UpstreamUnavailable,
    UpstreamUnreachable,
)
from proxy.observe.observation import Attempts
from proxy.tools.dialogue import Dialogue
from proxy.tools.rounds import Rounds
from proxy.upstream.attempt import Deadlines, UpstreamAnswer, attempt, open_response, retry_policy
from proxy.upstream.body import ChatRequest, UpstreamRequest
from proxy.upstream.target import Target

# With less than this left, in seconds, an upstream could not answer anyway.
_LEAST = 0.02
_A_MOMENT = 1.0
# Where all upstreams fail, calls find out so often, in seconds, whether one works again.
_PROBE_EVERY = 1.0
# Each call asks it once for so many seconds after it began to fail: there is nowhere else to go.
_PATIENCE = 3.0
# A preferred upstream that is asked again is worth waiting for so many seconds before the next one is asked.
_SOON = 0.25
_BACKOFF = Backoff(shortest=0.1, longest=1.0, jitter=0.5)
_BEHIND_ALL = 1000


class TimeLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The time that all targets of a pipeline together have, in seconds.

    ``first_token`` is for an answer to begin, ``total`` for it to end. A second target is asked beside the
    first after ``hedge``.
    """

    first_token: float
    total: float
    hedge: float | None = None


class Dispatch:
    """Asks the targets of a pipeline in their order until one begins to answer, or time is up.

    All attempts share one deadline, which counts from here. ``model`` and ``upstream`` name what answers;
    until then, what is asked first. ``sent`` is the body of the last request.
    ``attempts`` collects failures and retries. ``dialogue`` is ``None``
    where the model has no tools of the proxy's. ``composed`` is what the first target is sent. Raises
    RequestError where no model is named for that.
    """

    def __init__(
        self,
        request: ChatRequest,
        targets: Sequence[Target],
        limits: TimeLimits,
        attempts: Attempts,
        composed: UpstreamRequest | None = None,
    ) -> None:
        self.streaming = request.streaming
        self.dialogue = Dialogue(request.tools) if request.tools else None
        first, *others = targets
        self._candidates = [Candidate(0, first, request, self.dialogue, composed)]
        self.model = self._candidates[0].request.model
        self.upstream = first.name
        self.sent = self._candidates[0].request.body
        for rank, target in enumerate(others, 1):
            if request.names_model(target):
                self._candidates.append(Candidate(rank, target, request, self.dialogue))
        self._attempts = attempts
        self._time = asyncio.get_running_loop().time
        self._since = self._time()
        self._hedge = limits.hedge if request.streaming else None
        self._patience = self._since + min(limits.first_token, limits.total)
        self._due = self._patience if request.streaming else self._since + limits.total
        self._answer: UpstreamAnswer | None = None
        self._failure: UpstreamError | None = None

    async def begin(self) -> UpstreamAnswer:
        """Return the first answer that begins; raise the last UpstreamError where none does."""
        answer = await (self._run() if self._hedge is None else self._race(self._hedge))
        if answer is None:
            if self._failure is None:
                self._failure = UpstreamTimeout("No upstream could be asked in time.")
                self._failure.upstream = self.upstream
            raise self._failure
        self.model, self.upstream = answer.model, answer.upstream
        return answer

    async def _run(self) -> UpstreamAnswer | None:
        """Ask one candidate after the other; return ``None`` once no more can be asked.

        Raises UpstreamError where another upstream would fail in the same way.
        """
        while (candidate := self._next()) is not None:
            self._candidates.remove(candidate)
            candidate.tries += 1
            candidate.called_tools = False
            target = candidate.target
            if candidate.ready:
                await asyncio.sleep(candidate.ready - self._time())
            if candidate.tries > 1:
                self._attempts.retries.append(target.name)
            began = self._time()
            deadlines = self._deadlines(target)
            request = candidate.request
            self.sent = request.body
            try:
                run_tools = candidate.run_tools if self.dialogue else None
                answer = await attempt(target, request, candidate.breaker, deadlines, run_tools)
            except UpstreamError as error:
                self._fail(candidate, error, began)
                continue
            target.health.record_answer()
            if self._answer is None:
                self._answer = answer
                if self.dialogue:
                    self.dialogue.assign_to(answer.response)
            else:  # another run was faster
                answer.response.close()
            return self._answer
        return None

    async def _race(self, hedge: float) -> UpstreamAnswer | None:
        """A run, and another one beside it where the first has no answer after ``hedge`` seconds."""
        first = asyncio.create_task(self._run())
        runs = [first]
        answer = None
        try:
            await asyncio.wait(runs, timeout=hedge)
            if not first.done():
                runs.append(asyncio.create_task(self._run()))
            pending = set(runs)
            while pending and answer is None:
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                for run in done:
                    # A second run that fails is no reason to give up the first, which is merely late.
                    if run is first or not isinstance(run.exception(), UpstreamError):
                        answer = answer or run.result()
        finally:
            for run in runs:
                if not run.done():
                    run.cancel()
                elif not run.cancelled() and run.exception() is None:
                    loser = run.result()
                    if loser is not None and loser is not answer:
                        loser.response.close()
        return answer

    def _next(self) -> "Candidate | None":
        """The candidate to ask next, or to wait for; one whose circuit is open gives way to others."""
        now, latest = self._time(), self._due - _LEAST
        if now > latest:
            return None
        for candidate in self._candidates:
            if candidate.ready <= now + _SOON and candidate.breaker.admit():
                return candidate
        # A whole answer may take long to come; taking a request may not.
        latest = min(latest, max(self._patience, now + _A_MOMENT))
        waiting = [each for each in self._candidates if each.ready <= latest]
        waiting.sort(key=lambda each: (each.breaker.state != "closed", each.ready))
        for candidate in waiting:
            if candidate.admit_last():
                return candidate
        if waiting and not self._attempts.failures:
            self._failure = UpstreamUnavailable(waiting[0].target.name, retry_after=_PROBE_EVERY)
        return None

    def _deadlines(self, target: Target) -> Deadlines:
        now, total = self._time(), self._since + target.total
        if not self.streaming:
            # A silent upstream cannot be told from a slow one: each has its share of the time.
            untried = sum(not each.tries and each.breaker.state != "open" for each in self._candidates)
            whole = min(total, now + (self._due - now) / (1 + untried))
            return Deadlines(whole, None, whole)
        latest = min(self._due, total)
        first = min(latest, now + target.first_token)
        if target.first_content is None:
            return Deadlines(first, None, total)
        content = min(latest, now + target.first_content)
        return Deadlines(min(first, content), content, total)

    def _fail(self, candidate: "Candidate", error: UpstreamError, began: float) -> None:
        """Record a failed attempt; raise its error where another upstream would fail in the same way."""
        error.drop_traceback()
        target, late = candidate.target, isinstance(error, UpstreamTimeout)
        error.upstream = target.name
        patience = target.patience if self.streaming else _A_MOMENT
        # An attempt that had too little time says nothing by being late.
        if not late or self._due - began >= min(patience, _A_MOMENT) / 2:
            self._failure = error
        if isinstance(error, UpstreamUnreachable):
            target.health.record_unreachable()
        elif isinstance(error, UpstreamRefused):
            target.health.record_answer()
        self._attempts.failures.append((target.name, error.code or ""))
        policy = retry_policy(error)
        if policy.retry and candidate.tries <= target.retries:
            candidate.ready = self._time() + policy.delay + _BACKOFF.pause(candidate.tries)
            candidate.rank += _BEHIND_ALL if policy.last else 0
            self._candidates.append(candidate)
            self._candidates.sort(key=lambda each: each.rank)
        if policy.unhealthy and not (candidate.called_tools and late):
            candidate.breaker.record_failure()
        if not policy.fall_back:
            raise error


class Candidate:
    """A target in one turn: how many ``tries`` it had, and when it is ``ready`` for the next (loop time).

    One that has ``called_tools`` of the proxy's in this try is slow, where it is late, rather than down.
    """

    __slots__ = (
        "_chat", "_composed", "_dialogue", "_rounds", "called_tools", "rank", "ready", "target", "tries",
    )  # fmt: skip

    def __init__(
        self,
        rank: int,
        target: Target,
        chat: ChatRequest,
        dialogue: Dialogue | None,
        composed: UpstreamRequest | None = None,
    ) -> None:
        self.rank = rank
        self.target = target
        self.ready = 0.0
        self.tries = 0
        self.called_tools = False
        # What is composed for good is all that is needed: messages take the most room of a stream.
        self._chat = chat if composed is None or dialogue else None
        self._dialogue = dialogue
        self._rounds = 0
        self._composed = composed

    @property
    def request(self) -> UpstreamRequest:
        """What it is sent: composed when it is needed first, and again behind each round of tools."""
        dialogue = self._dialogue
        if self._composed is not None and (dialogue is None or self._rounds == dialogue.rounds):
            return self._composed
        chat = self._chat
        assert chat is not None  # noqa: S101 - it is let go only where nothing more is composed
        if dialogue and dialogue.rounds:
            self._rounds = dialogue.rounds
            chat = chat.extended(dialogue.messages, last=dialogue.is_last_round)
        self._composed = chat.to(self.target)
        return self._composed

    @property
    def breaker(self) -> CircuitBreaker:
        """The circuit breaker of the model that it is asked for."""
        return self.target.health.breaker(self.request.model)

    def admit_last(self) -> bool:
        """Whether it may be asked where the circuits of all others are open."""
        return self.breaker.admit_last(probe_every=_PROBE_EVERY, patience=0.0 if self.tries else _PATIENCE)

    def run_tools(self, response: Response, due: float) -> Response:
        """The response as the client sees it, the proxy's own tools carried out in it."""
        assert self._dialogue is not None  # noqa: S101 - without one there are no tools
        return Rounds(response, self._go_on, self._dialogue, self._rounds, due)

    async def _go_on(self, due: float) -> Response:
        self.called_tools = True
        return await open_response(self.target, self.request, due)
