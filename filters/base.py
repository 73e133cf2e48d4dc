"""The base classes of filters, which are frozen values of options with pure functions, and their inputs."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol

import msgspec
from pydantic import BaseModel, ConfigDict

from filters.injection import Episode, LastCall, Remembered
from filters.message import Message
from filters.tokens import CountTokens, in_text

Messages = Sequence[Message]
Fields = Mapping[str, msgspec.Raw]
"""The top-level fields of a request without its messages, as raw JSON by name."""
Delta = Mapping[str, Any]
"""The delta of one choice in one event; the message of a whole answer is one large delta."""


class Snapshot(msgspec.Struct, frozen=True, gc=False):
    """A session in memory at the time of a turn; empty if nothing is remembered.

    ``dropped`` are the messages of this call before the window that the client replays, as they were heard.
    ``summaries`` replace the messages before those, oldest first. ``began`` is the start of this call in
    seconds since 1970, and ``speakers`` are the names of its speakers. ``episodes`` are the agent's recent
    ones, newest first. ``state`` is data that the client keeps with the session. ``recalled`` are items from
    outside this conversation that may be relevant to the newest words, best first. ``facts`` about the
    caller stay the same from turn to turn, oldest first, and ``news`` are newer facts. ``profile`` is the
    operator's text about the caller, and ``last_call`` an earlier call under any session; neither changes
    until the call ends.
    """

    dropped: tuple[Message, ...] = ()
    summaries: tuple[str, ...] = ()
    began: float | None = None
    speakers: frozenset[str] = frozenset()
    episodes: tuple[Episode, ...] = ()
    state: Mapping[str, Any] = {}
    scale: float = 1.0
    recalled: tuple[Remembered, ...] = ()
    facts: tuple[Remembered, ...] = ()
    news: tuple[Remembered, ...] = ()
    profile: str = ""
    last_call: LastCall | None = None


class Context(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The data that a filter gets beside the messages. ``now`` is in seconds since 1970.

    ``count`` counts the tokens of a text; by default it estimates them.
    """

    now: float
    tenant: str = "default"
    session: str | None = None
    user: str | None = None
    memory: Snapshot = Snapshot()
    count: CountTokens = in_text


class Example(msgspec.Struct, frozen=True):
    """A conversation before and after a filter, which is both its documentation and a test.

    Messages and the other fields of the request are written as a client sends them.
    """

    title: str
    options: Mapping[str, Any]
    before: Sequence[Mapping[str, Any]]
    after: Sequence[Mapping[str, Any]]
    context: Context = Context(now=0.0)
    fields: Mapping[str, Any] = {}
    fields_after: Mapping[str, Any] = {}


class Spoken(msgspec.Struct, frozen=True):
    """An answer from the model and as the client gets it, which is both documentation and a test.

    ``before`` is the content in streamed pieces; other pieces of the same text must give the same ``after``.
    """

    title: str
    options: Mapping[str, Any]
    before: Sequence[str]
    after: str
    context: Context = Context(now=0.0)


class Filter(BaseModel):
    """A step of a pipeline. The class is the options: its fields are the keys in YAML."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class RequestFilter(Filter):
    """A step between the client's request and the model's.

    It does no I/O, changes nothing that it was given, and returns the same for the same.
    """

    examples: ClassVar[tuple[Example, ...]] = ()

    idempotent: ClassVar[bool] = True
    """Whether a second application changes nothing more, with any options."""
    keeps_system: ClassVar[bool] = True
    """Whether system and developer messages stay unchanged, and none are added."""
    keeps_words: ClassVar[bool] = True
    """Whether the newest user message still ends with the newest words of the user."""
    keeps_past: ClassVar[bool] = True
    """Whether the result for a turn stays the same when more turns follow."""
    leaves_out: ClassVar[str | None] = None
    """The word that tells the client that messages were left out; ``None`` if nothing is lost."""

    def apply(self, messages: Messages, context: Context) -> Messages:
        """Returns the messages for the next step."""
        return messages

    def set(self, fields: Fields, context: Context) -> Fields:
        """Returns the other fields of the request for the next step."""
        return fields


class Stage(Protocol):
    """One filter's state for one choice of one answer."""

    def feed(self, delta: Delta) -> Delta:
        """Returns the delta to send on; the same object if nothing changes, so that its bytes are kept."""
        ...

    def close(self) -> Delta:
        """Returns what was held back, if anything. Called exactly once, however the answer ends."""
        ...


class AnswerFilter(Filter):
    """A step between the model's answer and the client's, for streams and whole answers alike."""

    spoken: ClassVar[tuple[Spoken, ...]] = ()

    def open(self, context: Context) -> Stage | None:
        """Returns a new stage for one choice; ``None`` if the filter does not change deltas."""
        return None

    def first(self, context: Context) -> Mapping[str, Any] | None:
        """Returns an event to be sent before all others of a stream, or ``None``."""
        return None
