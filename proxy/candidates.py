"""The upstreams that may be asked in one turn: which is next, and when."""

import random
from collections.abc import Sequence

from filters.message import Message
from proxy.attempt import opened
from proxy.breaker import Breaker
from proxy.errors import UpstreamError
from proxy.pipeline import Pipeline, Target
from proxy.question import Question, Request
from proxy.remedy import Remedy, remedy
from proxy.tools import Rounds
from proxy.upstream import Response

# An upstream that stands further in front is worth so much of a caller's patience, in seconds.
_SOON = 0.25
_SHORTEST, _LONGEST = 0.1, 1.0
_BEHIND_ALL = 1000


class Candidate:
    """An upstream for a turn: how often it was asked, and from when on it may be asked again.

    It ``talks`` once it has called a tool of ours: whoever is late then is slow rather than ill.
    """

    __slots__ = ("_pipeline", "_question", "_request", "rank", "ready", "talks", "target", "tried")

    def __init__(self, rank: int, target: Target, question: Question, pipeline: Pipeline) -> None:
        self.rank = rank
        self.target = target
        self.ready = 0.0
        self.tried = 0
        self.talks = False
        self._question = question
        self._pipeline = pipeline
        self._request: Request | None = None

    @property
    def request(self) -> Request:
        """What it is sent, composed when it is needed first."""
        if self._request is None:
            self._request = self._question.to(self.target, self._pipeline)
        return self._request

    def stitched(self, response: Response, due: float) -> Response:
        """The answer as the client is to see it, where the model may call tools of ours in it."""
        tools = self._question.tools
        if tools is None:
            return response

        async def again(said: Sequence[Message], last: bool, due: float) -> Response:  # noqa: FBT001
            tools.again.append(self.target.name)
            self.talks = True
            asked = self._question.followed_by(said, last=last).to(self.target, self._pipeline)
            return await opened(self.target, asked, due)

        return Rounds(response, again, tools, due)

    @property
    def breaker(self) -> Breaker:
        """What watches over the model that it is asked for."""
        return self.target.health.of(self.request.model)

    def put_off(self, wanted: Remedy, now: float) -> None:
        """It is left alone for a while: as long as it wants, and a bit longer with each try."""
        pause = min(_LONGEST, _SHORTEST * 2 ** (self.tried - 1))
        self.ready = now + wanted.after + random.uniform(pause / 2, pause)  # noqa: S311 - no secret
        self.rank += _BEHIND_ALL if wanted.later else 0


class Candidates:
    """What is left of a pipeline's upstreams, in the order in which they are preferred. Times are the loop's.

    RequestError where nobody named a model for the first of them.
    """

    def __init__(self, question: Question, pipeline: Pipeline) -> None:
        targets = pipeline.targets
        self._left = [Candidate(0, targets[0], question, pipeline)]
        self.model = self._left[0].request.model
        for rank in range(1, len(targets)):
            if question.names_model(targets[rank], pipeline):
                self._left.append(Candidate(rank, targets[rank], question, pipeline))

    def take(self, now: float, latest: float) -> Candidate | None:
        """The one to ask next, no more among them; ``None`` where none may be asked by ``latest``.

        One whose breaker is open is passed over while there are others. The one that is taken may have to be
        waited for.
        """
        chosen = self._fit(now + _SOON) or self._any(latest)
        if chosen is not None:
            self._left.remove(chosen)
            chosen.tried += 1
        return chosen

    def put_back(self, candidate: Candidate, error: UpstreamError, now: float) -> Remedy:
        """What follows from a failure; a candidate that may be asked again stands among the others again."""
        wanted = remedy(error)
        if wanted.again and candidate.tried <= candidate.target.retries:
            candidate.put_off(wanted, now)
            self._left.append(candidate)
            self._left.sort(key=lambda each: each.rank)
        return wanted

    def _fit(self, soon: float) -> Candidate | None:
        for each in self._left:
            if each.ready <= soon and each.breaker.admit():
                return each
        return None

    def _any(self, latest: float) -> Candidate | None:
        left = [each for each in self._left if each.ready <= latest]
        return min(left, key=lambda each: (each.breaker.state != "closed", each.ready), default=None)
