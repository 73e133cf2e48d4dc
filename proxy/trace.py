"""A trace: one turn that has ended, kept for the page."""

import time
from collections.abc import Sequence
from operator import attrgetter
from typing import Final, Self

import msgspec

from filters.base import Messages
from proxy.clock import wall_time
from proxy.observe.observation import Excerpt, Observation, TurnReport, excerpt_of
from proxy.turn.pipeline import Pipeline
from proxy.turn.state import TurnContent
from proxy.upstream.target import Target

_MOST_CHUNK_TIMES: Final = 200
_user: Final = attrgetter("user")


class TraceRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A turn that has ended, without its text; all times are by one clock.

    ``marks`` are the beginnings of stages. The answer was sent in ``count`` pieces, and ``chunks`` are the
    times of up to 200 of them. ``failure`` is the reason if the answer is incomplete, and ``size`` the
    approximate size of the text in bytes. ``written_at`` is when the turn was written to memory.
    """

    report: TurnReport
    marks: Sequence[tuple[str, float]]
    chunks: Sequence[float]
    count: int
    end: float
    failure: str | None = None
    size: int = 0
    written_at: float | None = msgspec.field(default=None, name="written")
    named_users: frozenset[str] | None = msgspec.field(default=None, name="users")
    """The users of a turn whose messages are kept by another process."""

    def shifted(self, seconds: float) -> Self:
        """The record with its times shifted to a clock that is ``seconds`` ahead."""
        return msgspec.structs.replace(
            self,
            marks=[(name, at + seconds) for name, at in self.marks],
            chunks=[at + seconds for at in self.chunks],
            end=self.end + seconds,
            written_at=None if self.written_at is None else self.written_at + seconds,
        )


class Trace(TraceRecord, frozen=True, kw_only=True, gc=False):
    """A turn that has ended. ``start`` and all other times are by ``time.perf_counter``.

    ``answer`` are the first 4 MB that the client got. ``pipeline`` is the turn's pipeline, if ``content`` is
    kept.
    """

    number: int
    start: float
    content: TurnContent | None = None
    pipeline: Pipeline | None = None
    answer: bytes = b""

    @property
    def failure_at_upstream(self) -> str | None:
        """The reason for the failure, with the upstream's name if an upstream failed."""
        name = self.report.upstream
        if self.failure is None or name is None:
            return self.failure
        return self.failure.replace("The upstream", f"upstream {name}", 1)

    @classmethod
    def of(cls, report: TurnReport, observation: Observation, *, number: int, with_content: bool) -> Self:
        """Makes the trace of a turn, with its text if ``with_content``."""
        timer, answer = observation.timer, observation.answer
        content, pipeline = None, None
        if with_content and isinstance(observation.content, TurnContent):
            content, pipeline = (
                observation.content.without_credentials(observation.sent_body),
                observation.route,
            )
        return cls(
            report=report,
            number=number,
            start=timer.start,
            marks=tuple(timer.marks),
            chunks=answer.times[:: len(answer.times) // _MOST_CHUNK_TIMES + 1],
            count=answer.count,
            end=timer.start + report.duration,
            failure=observation.reason,
            content=content,
            pipeline=pipeline if isinstance(pipeline, Pipeline) else None,
            answer=answer.data if content else b"",
            size=observation.size + len(answer.data) if content else 0,
        )

    def target_of(self, pipeline: Pipeline) -> Target:
        """The target in ``pipeline`` that was asked last, or its first one."""
        targets = pipeline.targets
        return next((target for target in targets if target.name == self.report.upstream), targets[0])

    @property
    def messages(self) -> Messages:
        """The client's messages, if they are kept; they are decoded at each access."""
        return self.content.messages if self.content else ()

    @property
    def excerpt(self) -> Excerpt | None:
        """An excerpt, if the content is kept."""
        return None if self.content is None else excerpt_of(self.messages, self.report.user, self.answer)

    @property
    def users(self) -> set[str]:
        """The turn's user, and the users of its messages."""
        if self.named_users is not None:
            return set(self.named_users)
        return {self.report.user, *map(_user, self.messages)} - {None}

    @property
    def last_call_speakers(self) -> Sequence[str]:
        """The users who spoke in the earlier call that was injected, if the content is kept."""
        return self.content.last_call_speakers if self.content else ()

    def messages_by(self, user: str) -> Messages:
        """A user's messages: those that name the user, and the newest one if the turn is the user's."""
        users = [m for m in self.messages if m.role == "user"]
        newest = users[-1:] if self.report.user == user else []
        return [m for m in users if m.user == user or (m.user is None and any(m is one for one in newest))]

    @property
    def arrival(self) -> float:
        """The arrival in seconds since 1970, corrected if the clock was set back since."""
        return min(self.report.at, wall_time() - (time.perf_counter() - self.start))

    def without_content(self) -> Self:
        """The trace without any text."""
        return msgspec.structs.replace(self, content=None, pipeline=None, answer=b"", size=0)
