"""Upstreams are asked one after the other, until one begins to answer or time is up."""

import asyncio
from collections.abc import Awaitable, Sequence

import msgspec

from proxy.answer.response import Response
from proxy.circuit import Backoff, CircuitBreaker
from proxy.errors import UpstreamError, UpstreamRefused, UpstreamTimeout, UpstreamUnreachable
from proxy.observe.observation import Attempts
from proxy.tools.dialogue import Dialogue
from proxy.tools.rounds import Rounds
from proxy.upstream.attempt import (
    Deadlines,
    RetryPolicy,
    UpstreamAnswer,
    attempt,
    open_response,
    retry_policy,
)
from proxy.upstream.request import ChatRequest, Course, UpstreamRequest
from proxy.upstream.target import Target

# With less than this left, in seconds, an upstream could not answer anyway.
_LEAST = 0.02
_A_MOMENT = 1.0
# An upstream that stands further in front is worth so much of a caller's patience, in seconds.
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


class Fallback:
    """One question on its way to whichever upstream answers it first.

    All attempts share one deadline, which counts from here. ``model`` and ``upstream`` are what answered;
    until then, what is asked first; ``tries`` is told of what it took. ``streaming`` is whether the answer is
    to come in parts. RequestError where nobody named a model.
    """

    def __init__(
        self, request: ChatRequest, targets: Sequence[Target], limits: TimeLimits, attempts: Attempts
    ) -> None:
        self._course = Course(request, targets)
        self._candidates = Candidates(self._course)
        self.model = self._candidates.model
        self.upstream = targets[0].name
        self._hedge = limits.hedge if request.streaming else None
        self._tries = attempts
        self.streaming = request.streaming
        self._time = asyncio.get_running_loop().time
        self._since = self._time()
        self._patience = self._since + min(limits.first_token, limits.total)
        self._due = self._patience if request.streaming else self._since + limits.total
        self._begun: UpstreamAnswer | None = None
        self._failure: UpstreamError = UpstreamTimeout("No upstream could be asked in time.")

    @property
    def dialogue(self) -> Dialogue | None:
        """What the model and our tools tell each other, if it has any."""
        return self._course.dialogue

    @property
    def rounds(self) -> int:
        """How often the model was to go on, behind tools of ours that were carried out."""
        return self._course.rounds

    async def begin(self) -> UpstreamAnswer:
        """The first answer that begins. Raises the last UpstreamError where none does."""
        begun = await (self._one_by_one() if self._hedge is None else self._hedged(self._hedge))
        if begun is None:
            raise self._failure
        self.model, self.upstream = begun.model, begun.upstream
        return begun

    async def _one_by_one(self) -> UpstreamAnswer | None:
        """The answer of the first upstream that gives one; ``None`` when all have been asked.

        Raises UpstreamError where no other upstream would know better.
        """
        while (candidate := self._next()) is not None:
            if candidate.ready:
                await asyncio.sleep(candidate.ready - self._time())
            if candidate.tried > 1:
                self._tries.retries.append(candidate.target.name)
            asked_at = self._time()
            try:
                begun = await self._ask(candidate, candidate.target)
            except UpstreamError as error:
                self._failed(candidate, error, asked_at)
            else:
                candidate.target.health.reached()
                return self._chosen(begun)
        return None

    def _chosen(self, begun: UpstreamAnswer) -> UpstreamAnswer:
        """The answer that began first: it is the client's, and a later one is let go."""
        if self._begun is None:
            self._begun = begun
            self._course.leave_to(begun.response)
        else:
            begun.response.close()
        return self._begun

    def _ask(self, candidate: "Candidate", target: Target) -> Awaitable[UpstreamAnswer]:
        until = self._until(target)
        return attempt(target, candidate.request, candidate.breaker, until, candidate.stitched)

    def _next(self) -> "Candidate | None":
        now = self._time()
        if now > self._due - _LEAST:
            return None
        # A whole answer may take long to come, but nobody waits that long for an upstream to take a question.
        return self._candidates.take(now, min(self._due - _LEAST, max(self._patience, now + _A_MOMENT)))

    def _failed(self, candidate: "Candidate", error: UpstreamError, began: float) -> None:
        error.let_go()
        if not (self._cut_short(candidate.target, began) and isinstance(error, UpstreamTimeout)):
            self._failure = error
        if isinstance(error, UpstreamUnreachable):
            candidate.target.health.unreachable()
        elif isinstance(error, UpstreamRefused):
            candidate.target.health.reached()
        self._tries.failures.append((candidate.target.name, error.code or ""))
        wanted = self._candidates.put_back(candidate, error, self._time())
        if wanted.unhealthy and not (candidate.talks and isinstance(error, UpstreamTimeout)):
            candidate.breaker.failed()
        if not wanted.fall_back:
            raise error

    def _cut_short(self, target: Target, began: float) -> bool:
        """Whether a try had too little time left to tell anything by being late."""
        entitled = target.patience if self.streaming else _A_MOMENT
        return self._due - began < min(entitled, _A_MOMENT) / 2

    def _until(self, target: Target) -> Deadlines:
        now, total = self._time(), self._since + target.total
        if (
            not self.streaming
        ):  # nobody can tell who is silent from who is slow: each has its share of the time
            whole = min(total, now + (self._due - now) / (1 + self._candidates.untried))
            return Deadlines(whole, None, whole)
        latest = min(self._due, total)
        first = min(latest, now + target.first_token)
        if target.first_content is None:
            return Deadlines(first, None, total)
        content = min(latest, now + target.first_content)
        return Deadlines(min(first, content), content, total)

    async def _hedged(self, patience: float) -> UpstreamAnswer | None:
        runs = [asyncio.create_task(self._one_by_one())]
        begun = None
        try:
            await asyncio.wait(runs, timeout=patience)
            if not runs[0].done():
                runs.append(asyncio.create_task(self._one_by_one()))
            begun = await _first(runs)
        finally:
            for each in runs:
                _let_go(each, begun)
        return begun


async def _first(runs: Sequence[asyncio.Task[UpstreamAnswer | None]]) -> UpstreamAnswer | None:
    """What the first run that has an answer brings; raises what the one that began first raises."""
    left = set(runs)
    while left:
        done, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
        for each in done:
            # Whoever was to help out and will not is no reason to give up the one that is merely late.
            if each is not runs[0] and isinstance(each.exception(), UpstreamError):
                continue
            if begun := each.result():
                return begun
    return None


def _let_go(run: asyncio.Task[UpstreamAnswer | None], winner: UpstreamAnswer | None) -> None:
    """Ends a run, and an answer that nobody wants any more."""
    if not run.done():
        run.cancel()
    elif not run.cancelled() and run.exception() is None:
        begun = run.result()
        if begun is not None and begun is not winner:
            begun.response.close()


class Candidate:
    """An upstream for a turn: how often it was asked, and from when on it may be asked again.

    It ``talks`` once it has called a tool of ours since it was asked: if it is late then, it is slow rather
    than ill.
    """

    __slots__ = ("_course", "_request", "_rounds", "rank", "ready", "talks", "target", "tried")

    def __init__(self, rank: int, target: Target, course: Course) -> None:
        self.rank = rank
        self.target = target
        self.ready = 0.0
        self.tried = 0
        self.talks = False
        self._course = course
        self._rounds = 0
        self._request: UpstreamRequest | None = None

    @property
    def request(self) -> UpstreamRequest:
        """What it is sent, composed when it is needed first, and again when there is more to be said."""
        if self._request is None or self._rounds != self._course.rounds:
            self._rounds = self._course.rounds
            self._request = self._course.to(self.target)
        return self._request

    def stitched(self, response: Response, due: float) -> Response:
        """The answer as the client is to see it, where the model may call tools of ours in it."""
        dialogue = self._course.dialogue
        if dialogue is None:
            return response
        return Rounds(response, self._again, dialogue, self._rounds, due)

    async def _again(self, due: float) -> Response:
        self.talks = True
        return await open_response(self.target, self.request, due)

    @property
    def breaker(self) -> CircuitBreaker:
        """What watches over the model that it is asked for."""
        return self.target.health.breaker(self.request.model)

    def put_off(self, wanted: RetryPolicy, now: float) -> None:
        """It is left alone for a while: as long as it wants, and a bit longer with each try."""
        self.ready = now + wanted.delay + _BACKOFF.pause(self.tried)
        self.rank += _BEHIND_ALL if wanted.last else 0


class Candidates:
    """What is left of a pipeline's upstreams, in the order in which they are preferred. Times are the loop's.

    RequestError where nobody named a model for the first of them.
    """

    def __init__(self, course: Course) -> None:
        first, *others = course.targets
        self._left = [Candidate(0, first, course)]
        self.model = self._left[0].request.model
        for rank, target in enumerate(others, 1):
            if course.names_model(target):
                self._left.append(Candidate(rank, target, course))

    @property
    def untried(self) -> int:
        """How many others may answer that have not been asked at all."""
        return sum(not each.tried and each.breaker.state != "open" for each in self._left)

    def take(self, now: float, latest: float) -> "Candidate | None":
        """The one to ask next, no more among them; ``None`` where none may be asked by ``latest``.

        One whose breaker is open is passed over while there are others. The one that is taken may have to be
        waited for.
        """
        chosen = self._fit(now + _SOON) or self._any(latest)
        if chosen is not None:
            self._left.remove(chosen)
            chosen.tried += 1
            chosen.talks = False
        return chosen

    def put_back(self, candidate: "Candidate", error: UpstreamError, now: float) -> RetryPolicy:
        """What follows from a failure; a candidate that may be asked again stands among the others again."""
        wanted = retry_policy(error)
        if wanted.retry and candidate.tried <= candidate.target.retries:
            candidate.put_off(wanted, now)
            self._left.append(candidate)
            self._left.sort(key=lambda each: each.rank)
        return wanted

    def _fit(self, soon: float) -> "Candidate | None":
        for each in self._left:
            if each.ready <= soon and each.breaker.admit():
                return each
        return None

    def _any(self, latest: float) -> "Candidate | None":
        left = [each for each in self._left if each.ready <= latest]
        return min(left, key=lambda each: (each.breaker.state != "closed", each.ready), default=None)
