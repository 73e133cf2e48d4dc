"""Routing: which upstream is asked, how often and for how long, until one begins to answer."""

import asyncio
from collections.abc import Sequence
from functools import partial

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
from proxy.tools.rounds import Dialogue, Rounds
from proxy.upstream.attempt import Deadlines, UpstreamAnswer, attempt, open_response, retry_policy
from proxy.upstream.body import ChatRequest, UpstreamRequest
from proxy.upstream.target import Target

# In seconds: with less time than this, an upstream is not asked, since it could not answer anyway.
_LEAST = 0.02
_A_MOMENT = 1.0
# In seconds: how often each upstream is probed while all of them fail.
_PROBE_EVERY = 1.0
# In seconds after the first failure: each call still asks a failing upstream once if there is no other.
_GRACE = 3.0
# In seconds: how long a retry of a preferred upstream is waited for before the next upstream is asked.
_SOON = 0.25
_BACKOFF = Backoff(shortest=0.1, longest=1.0, jitter=0.5)
_BEHIND_ALL = 1000


class TimeLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The time limits that all targets of a pipeline share, in seconds.

    An answer must begin within ``first_token`` and end within ``total``. After ``hedge`` without an answer, a
    second target is asked in parallel.
    """

    first_token: float
    total: float
    hedge: float | None = None


class Dispatch:
    """Asks the targets of a pipeline in their order until one begins to answer, or time is up.

    All attempts share one deadline, which begins here. ``model`` and ``upstream`` are those that answer, and
    until then the first ones. ``sent_body`` is the body of the last request. ``attempts`` collects failures
    and retries. ``dialogue`` is ``None`` where the model has none of the proxy's tools. ``composed`` is the
    request for the first target. Raises RequestError where that has no model.
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
        first = targets[0]
        if composed is None:
            composed = request.to(first)
        self.model, self.upstream, self.sent_body = composed.model, first.name, composed.body
        self._candidates = [Candidate(0, first, composed, first.health.breaker(composed.model))]
        for rank, target in enumerate(targets[1:], 1):
            if request.names_model(target):
                self._candidates.append(Candidate(rank, target))
        # Frees the messages, which may be many, where only the request that is composed already can be sent.
        self._request = request if self.dialogue or len(targets) > 1 else None
        self._attempts = attempts
        self._time = asyncio.get_running_loop().time
        self._since = self._time()
        self._hedge = limits.hedge if request.streaming else None
        self._begin_by = self._since + min(limits.first_token, limits.total)
        self._due = self._begin_by if request.streaming else self._since + limits.total
        self._answer: UpstreamAnswer | None = None
        self._failure: UpstreamError | None = None
        self._refusal: UpstreamError | None = None

    async def begin(self) -> UpstreamAnswer:
        """Returns the first answer that begins; raises the last UpstreamError if none does.

        Candidates are asked one after the other. An error of the request itself is raised at once.
        """
        hedge, self._hedge = self._hedge, None
        if hedge is not None:
            return await self._race(hedge)
        while (candidate := self._next()) is not None:
            self._candidates.remove(candidate)
            candidate.tries += 1
            candidate.called_tools = False
            target, breaker = candidate.target, candidate.breaker or self._breaker(candidate)
            if candidate.ready:
                await asyncio.sleep(candidate.ready - self._time())
            if candidate.tries > 1:
                self._attempts.retries.append(target.name)
            began = self._time()
            deadlines = self._deadlines(target)
            try:
                request, run_tools = candidate.request or self._compose(candidate), None
                if self.dialogue:
                    request = self._compose(candidate)
                    run_tools = partial(self._with_tools, candidate, self.dialogue)
                self.sent_body = request.body
                answer = await attempt(target, request, breaker, deadlines, run_tools)
            except UpstreamError as error:
                self._fail(candidate, error, began)
                continue
            if not target.health.connection.is_healthy:
                target.health.record_answer()
            if self._answer is None:
                self._answer = answer
                self.model, self.upstream, self.sent_body = answer.model, answer.upstream, request.body
                if self.dialogue:
                    self.dialogue.assign_to(answer.response)
            else:  # another run was faster
                answer.response.close()
            return self._answer
        raise self._last_error()

    def _last_error(self) -> UpstreamError:
        if self._failure is None:
            self._failure = UpstreamTimeout("No upstream could be asked in time.")
            self._failure.upstream = self.upstream
        return self._failure

    async def _race(self, hedge: float) -> UpstreamAnswer:
        """Runs the candidates, and a second time in parallel if nothing answers within ``hedge`` seconds."""
        first = asyncio.create_task(self.begin())
        runs = [first]
        answer = None
        try:
            await asyncio.wait(runs, timeout=hedge)
            if not first.done():
                runs.append(asyncio.create_task(self.begin()))
            pending = set(runs)
            while pending and answer is None:
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                for run in done:
                    # If the second run fails, the first may still answer late; if the first run has no
                    # candidates left, the second may still answer. Only a refusal of the first ends both.
                    error = run.exception()
                    if not isinstance(error, UpstreamError) or (run is first and error is self._refusal):
                        answer = answer or run.result()
        finally:
            for run in runs:
                if not run.done():
                    run.cancel()
                elif not run.cancelled() and run.exception() is None and run.result() is not answer:
                    run.result().response.close()
        if answer is None:
            raise self._last_error()
        return answer

    def _next(self) -> "Candidate | None":
        """The candidate to ask next, perhaps after a pause; ``None`` where there is none in time.

        Candidates whose circuit is open come last.
        """
        now, latest = self._time(), self._due - _LEAST
        if now > latest:
            return None
        for candidate in self._candidates:
            breaker = candidate.breaker or self._breaker(candidate)
            if candidate.ready <= now + _SOON and (breaker.is_healthy or breaker.admit()):
                return candidate
        # An answer that is not streamed may take long, but a retry must still start early.
        latest = min(latest, max(self._begin_by, now + _A_MOMENT))
        waiting = [each for each in self._candidates if each.ready <= latest]
        waiting.sort(key=lambda each: (self._breaker(each).state != "closed", each.ready))
        for candidate in waiting:
            grace = 0.0 if candidate.tries else _GRACE
            if self._breaker(candidate).admit_last(probe_every=_PROBE_EVERY, grace=grace):
                return candidate
        if waiting and not self._attempts.failures:
            self._failure = UpstreamUnavailable(waiting[0].target.name, retry_after=_PROBE_EVERY)
        return None

    def _deadlines(self, target: Target) -> Deadlines:
        now, total = self._time(), self._since + target.total
        if not self.streaming:
            # A dead upstream cannot be told from a slow one: each candidate gets an equal share of the time.
            untried = sum(not each.tries and self._breaker(each).state != "open" for each in self._candidates)
            whole = min(total, now + (self._due - now) / (1 + untried))
            return Deadlines(whole, None, whole)
        latest = min(self._due, total)
        first = min(latest, now + target.first_token)
        if target.first_content is None:
            return Deadlines(first, None, total)
        content = min(latest, now + target.first_content)
        return Deadlines(min(first, content), content, total)

    def _fail(self, candidate: "Candidate", error: UpstreamError, began: float) -> None:
        """Records a failed attempt; raises its error if every other upstream would fail in the same way."""
        error.drop_traceback()
        target, late = candidate.target, isinstance(error, UpstreamTimeout)
        error.upstream = target.name
        enough = (min(target.begins_within, _A_MOMENT) if self.streaming else _A_MOMENT) / 2
        # The timeout of an attempt that had too little time is not reported as the reason.
        if not late or self._due - began >= enough:
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
            self._breaker(candidate).record_failure()
        if not policy.fall_back:
            self._refusal = error
            raise error

    def _breaker(self, candidate: "Candidate") -> CircuitBreaker:
        """The circuit breaker of a candidate's upstream and model."""
        if candidate.breaker is None:
            candidate.breaker = candidate.target.health.breaker(self._compose(candidate).model)
        return candidate.breaker

    def _compose(self, candidate: "Candidate") -> UpstreamRequest:
        """The request for a candidate: composed when first needed, and again after each round of tools."""
        rounds = self.dialogue.rounds if self.dialogue else 0
        if candidate.request is None or candidate.rounds != rounds:
            chat = self._request
            assert chat is not None  # noqa: S101 - the only target's request is composed
            if self.dialogue and rounds:
                chat = chat.extended(self.dialogue)
            candidate.rounds, candidate.request = rounds, chat.to(candidate.target)
        return candidate.request

    def _with_tools(
        self, candidate: "Candidate", dialogue: Dialogue, response: Response, due: float
    ) -> Response:
        """The response for the client, in which calls of the proxy's own tools are carried out."""
        return Rounds(response, partial(self._go_on, candidate), dialogue, candidate.rounds, due)

    async def _go_on(self, candidate: "Candidate", due: float) -> Response:
        candidate.called_tools = True
        return await open_response(candidate.target, self._compose(candidate), due)


class Candidate(msgspec.Struct, eq=False):
    """A target in one turn: its number of ``tries``, and the loop time when it is ``ready`` for the next.

    Candidates are asked in the order of ``rank``. ``request`` and ``breaker`` are set when they are needed;
    ``rounds`` is the number of tool rounds that the request includes. ``called_tools`` is whether memory
    tools ran in this try: then a timeout means that the target is slow rather than down.
    """

    rank: int
    target: Target
    request: UpstreamRequest | None = None
    breaker: CircuitBreaker | None = None
    ready: float = 0.0
    tries: int = 0
    rounds: int = 0
    called_tools: bool = False
