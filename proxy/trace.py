"""A trace: one turn that has ended, kept to be looked at."""

import time
from collections.abc import Sequence
from operator import attrgetter
from typing import Final, Self

import msgspec

from filters.base import Fields, Messages, Snapshot
from proxy.clock import wall_time
from proxy.observe.observation import Excerpt, Observation, TurnReport, excerpt_of
from proxy.turn.identity import Identity
from proxy.turn.pipeline import Pipeline
from proxy.turn.request import ClientRequest
from proxy.turn.state import Turn
from proxy.upstream.body import ChatRequest

_CREDENTIALS: Final = frozenset({"authorization", "proxy-authorization", "api-key", "x-api-key", "cookie"})
_MOST_CHUNK_TIMES: Final = 200
_user: Final = attrgetter("user")


class TurnContent(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What was said in a turn, without credentials and without anything that runs.

    ``marked`` are the client's messages with their interrupted answers marked, where that changed any.
    ``memory`` is what filters knew at ``now``. ``model``, ``fields`` and ``messages`` are the chat request as
    the filters left it, and ``size`` is that of the client's body.
    """

    request: ClientRequest
    identity: Identity
    marked: Messages | None
    now: float
    memory: Snapshot
    model: str | None
    fields: Fields
    messages: Messages
    size: int

    @classmethod
    def of(cls, turn: Turn) -> Self:
        """The content of a turn that has ended."""
        request, chat = turn.request, turn.chat
        headers = {name: value for name, value in request.headers.items() if name not in _CREDENTIALS}
        return cls(
            request=msgspec.structs.replace(request, headers=headers),
            identity=turn.identity,
            marked=None if turn.window is request.messages else turn.window,
            now=turn.context.now,
            memory=turn.context.memory,
            model=chat.model,
            fields=chat.fields,
            messages=chat.messages,
            size=turn.size,
        )

    @property
    def marked_request(self) -> ClientRequest:
        """The client's request with the interrupted answers marked."""
        if self.marked is None:
            return self.request
        return msgspec.structs.replace(self.request, messages=self.marked)

    @property
    def chat(self) -> ChatRequest:
        """The chat request as the filters left it."""
        return ChatRequest(
            model=self.model,
            headers=self.request.headers,
            fields=self.fields,
            messages=self.messages,
            streaming=self.is_streaming,
        )

    @property
    def is_streaming(self) -> bool:
        """Whether the client asked for a stream."""
        return self.request.field("stream") is True


class Trace(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A turn that has ended. ``start``, ``marks``, ``chunks`` and ``end`` are by ``time.perf_counter``.

    ``marks`` are the beginnings of stages, ``chunks`` up to 200 of the ``count`` times at which something was
    sent. ``answer`` is what the client got, up to 4 MB, ``failure`` the reason if that is not all, and
    ``size`` about how many bytes are kept. With ``content`` there is the ``pipeline`` that the turn took.
    ``written`` is when another process had written it to memory.
    """

    report: TurnReport
    number: int
    start: float
    marks: Sequence[tuple[str, float]]
    chunks: Sequence[float]
    count: int
    end: float
    failure: str | None = None
    content: TurnContent | None = None
    pipeline: Pipeline | None = None
    answer: bytes = b""
    size: int = 0
    named_users: frozenset[str] | None = None
    """The users of a turn whose messages are not at hand."""
    written: float | None = None

    @property
    def failure_at_upstream(self) -> str | None:
        """The reason with the name of the upstream in it, where it was one's."""
        name = self.report.upstream
        if self.failure is None or name is None:
            return self.failure
        return self.failure.replace("The upstream", f"upstream {name}", 1)

    @classmethod
    def of(cls, report: TurnReport, observation: Observation, *, number: int, with_content: bool) -> Self:
        """The trace of a turn; without ``with_content``, nothing of its text."""
        timer, answer = observation.timer, observation.answer
        turn = observation.content if with_content else None
        content, pipeline = None, None
        if isinstance(turn, Turn):
            content, pipeline = TurnContent.of(turn), turn.pipeline
        return cls(
            report=report,
            number=number,
            start=timer.start,
            marks=tuple(timer.marks),
            chunks=answer.times[:: len(answer.times) // _MOST_CHUNK_TIMES + 1],
            count=answer.count,
            end=timer.start + observation.duration,
            failure=observation.reason,
            content=content,
            pipeline=pipeline,
            answer=answer.data if content else b"",
            size=observation.size + len(answer.data) if content else 0,
        )

    @property
    def messages(self) -> Messages:
        """The client's messages, if they are kept."""
        return self.content.request.messages if self.content else ()

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

    def messages_by(self, user: str) -> Messages:
        """A user's messages: those that name the user, and the newest one if the turn is the user's."""
        users = [m for m in self.messages if m.role == "user"]
        newest = users[-1:] if self.report.user == user else []
        return [m for m in users if m.user == user or (m.user is None and any(m is one for one in newest))]

    @property
    def arrival(self) -> float:
        """The arrival in seconds since 1970, by the present clock: it may have been set back."""
        return min(self.report.at, wall_time() - (time.perf_counter() - self.start))

    def without_content(self) -> Self:
        """The trace without any text."""
        return msgspec.structs.replace(self, content=None, pipeline=None, answer=b"", size=0)
