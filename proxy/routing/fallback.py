"""Upstreams are asked one after the other, until one begins to answer or time is up."""

import asyncio
from collections.abc import Awaitable, Sequence

from proxy.errors import UpstreamError, UpstreamRefused, UpstreamTimeout, UpstreamUnreachable
from proxy.observe.observation import Attempts
from proxy.question import Question
from proxy.routing.attempt import Begun, Due, attempt
from proxy.routing.candidates import Candidate, Candidates
from proxy.routing.course import Course
from proxy.target import Target
from proxy.tools.dialogue import Dialogue
from proxy.turn.pipeline import Pipeline

# With less than this left, in seconds, an upstream could not answer anyway.
_LEAST = 0.02
_A_MOMENT = 1.0


class Fallback:
    """One question on its way to whichever upstream answers it first.

    All attempts share one deadline, which counts from here. ``model`` and ``upstream`` are what answered;
    until then, what is asked first; ``tries`` is told of what it took. ``streaming`` is whether the answer is
    to come in parts. RequestError where nobody named a model.
    """

    def __init__(self, question: Question, pipeline: Pipeline, tries: Attempts) -> None:
        self._course = Course(question, pipeline.targets)
        self._candidates = Candidates(self._course)
        self.model = self._candidates.model
        self.upstream = pipeline.targets[0].name
        self._pipeline = pipeline
        self._tries = tries
        self.streaming = question.streaming
        self._time = asyncio.get_running_loop().time
        self._since = self._time()
        self._patience = self._since + min(pipeline.first_token, pipeline.total)
        self._due = self._patience if question.streaming else self._since + pipeline.total
        self._begun: Begun | None = None
        self._failure: UpstreamError = UpstreamTimeout("No upstream could be asked in time.")

    @property
    def dialogue(self) -> Dialogue | None:
        """What the model and our tools tell each other, if it has any."""
        return self._course.dialogue

    @property
    def rounds(self) -> int:
        """How often the model was to go on, behind tools of ours that were carried out."""
        return self._course.rounds

    async def begin(self) -> Begun:
        """The first answer that begins. Raises the last UpstreamError where none does."""
        hedge = self._pipeline.hedge if self.streaming else None
        begun = await (self._one_by_one() if hedge is None else self._hedged(hedge))
        if begun is None:
            raise self._failure
        self.model, self.upstream = begun.model, begun.upstream
        return begun

    async def _one_by_one(self) -> Begun | None:
        """The answer of the first upstream that gives one; ``None`` when all have been asked.

        Raises UpstreamError where no other upstream would know better.
        """
        while (candidate := self._next()) is not None:
            if candidate.ready:
                await asyncio.sleep(candidate.ready - self._time())
            if candidate.tried > 1:
                self._tries.again.append(candidate.target.name)
            asked_at = self._time()
            try:
                begun = await self._ask(candidate, candidate.target)
            except UpstreamError as error:
                self._failed(candidate, error, asked_at)
            else:
                candidate.target.health.reached()
                return self._chosen(begun)
        return None

    def _chosen(self, begun: Begun) -> Begun:
        """The answer that began first: it is the client's, and a later one is let go."""
        if self._begun is None:
            self._begun = begun
            self._course.leave_to(begun.response)
        else:
            begun.response.close()
        return self._begun

    def _ask(self, candidate: Candidate, target: Target) -> Awaitable[Begun]:
        until = self._until(target)
        return attempt(target, candidate.request, candidate.breaker, until, candidate.stitched)

    def _next(self) -> Candidate | None:
        now = self._time()
        if now > self._due - _LEAST:
            return None
        # A whole answer may take long to come, but nobody waits that long for an upstream to take a question.
        return self._candidates.take(now, min(self._due - _LEAST, max(self._patience, now + _A_MOMENT)))

    def _failed(self, candidate: Candidate, error: UpstreamError, began: float) -> None:
        error.let_go()
        if not (self._cut_short(candidate.target, began) and isinstance(error, UpstreamTimeout)):
            self._failure = error
        if isinstance(error, UpstreamUnreachable):
            candidate.target.health.unreachable()
        elif isinstance(error, UpstreamRefused):
            candidate.target.health.reached()
        self._tries.failed.append((candidate.target.name, error.code or ""))
        wanted = self._candidates.put_back(candidate, error, self._time())
        if wanted.ailing and not (candidate.talks and isinstance(error, UpstreamTimeout)):
            candidate.breaker.failed()
        if not wanted.elsewhere:
            raise error

    def _cut_short(self, target: Target, began: float) -> bool:
        """Whether a try had too little time left to tell anything by being late."""
        entitled = target.patience if self.streaming else _A_MOMENT
        return self._due - began < min(entitled, _A_MOMENT) / 2

    def _until(self, target: Target) -> Due:
        now, total = self._time(), self._since + target.total
        if (
            not self.streaming
        ):  # nobody can tell who is silent from who is slow: each has its share of the time
            whole = min(total, now + (self._due - now) / (1 + self._candidates.untried))
            return Due(whole, None, whole)
        latest = min(self._due, total)
        first = min(latest, now + target.first_token)
        if target.first_content is None:
            return Due(first, None, total)
        content = min(latest, now + target.first_content)
        return Due(min(first, content), content, total)

    async def _hedged(self, patience: float) -> Begun | None:
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


async def _first(runs: Sequence[asyncio.Task[Begun | None]]) -> Begun | None:
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


def _let_go(run: asyncio.Task[Begun | None], winner: Begun | None) -> None:
    """Ends a run, and an answer that nobody wants any more."""
    if not run.done():
        run.cancel()
    elif not run.cancelled() and run.exception() is None:
        begun = run.result()
        if begun is not None and begun is not winner:
            begun.response.close()
