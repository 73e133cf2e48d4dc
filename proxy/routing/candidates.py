"""The upstreams that may be asked in one turn: which is next, and when."""

import random

from proxy.breaker import Breaker
from proxy.errors import UpstreamError
from proxy.question import Request
from proxy.routing.attempt import opened
from proxy.routing.course import Course
from proxy.routing.remedy import Remedy, remedy
from proxy.target import Target
from proxy.tools.rounds import Rounds
from proxy.upstream import Response

# An upstream that stands further in front is worth so much of a caller's patience, in seconds.
_SOON = 0.25
_SHORTEST, _LONGEST = 0.1, 1.0
_BEHIND_ALL = 1000


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
        self._request: Request | None = None

    @property
    def request(self) -> Request:
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
        return await opened(self.target, self.request, due)

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

    def take(self, now: float, latest: float) -> Candidate | None:
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
