"""The base classes of filters: frozen values made from their options, with pure functions of messages."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol

import msgspec
from pydantic import BaseModel, ConfigDict

from filters.injection import Episode, LastCall, Remembered
from filters.message import Message
from filters.tokens import CountTokens, in_text

Messages = Sequence[Message]
Fields = Mapping[str, msgspec.Raw]
"""A request's top level less its messages, as raw JSON by name."""
Delta = Mapping[str, Any]
"""The part of one choice that an event adds; the message of a whole answer is one large delta."""


class Snapshot(msgspec.Struct, frozen=True, gc=False):
    """The memory of a session at one turn; empty where nothing is remembered.

    ``dropped`` are the messages of this call before the window that the client replays; ``summaries`` cover
    the turns before those, oldest first. ``began`` is when this call began, in seconds since 1970;
    ``speakers`` are the names of its speakers. ``episodes`` are the agent's recent actions, newest first.
    ``state`` is the value that the client keeps with the session. ``recalled`` are memories from other
    conversations that are related to the newest words, best first. ``facts`` about the caller stay the same
    from turn to turn, oldest first; ``news`` are facts that were added since. ``profile`` is the operator's
    text about the caller, and ``last_call`` an earlier call under any session; both stay the same until the
    call ends. ``scale`` is how many tokens the upstream counts for each estimated one.
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
    """The input of a filter beside the messages. ``now`` is in seconds since 1970.

    ``count`` returns the number of tokens of a text, which is an estimate unless a tokenizer is loaded.
    """

    now: float
    tenant: str = "default"
    session: str | None = None
    user: str | None = None
    memory: Snapshot = Snapshot()
    count: CountTokens = in_text


class Example(msgspec.Struct, frozen=True):
    """A conversation before and after a filter, as documentation and as a test.

    Messages are written as a client sends them, and so are the request's other fields.
    """

    title: str
    options: Mapping[str, Any]
    before: Sequence[Mapping[str, Any]]
    after: Sequence[Mapping[str, Any]]
    context: Context = Context(now=0.0)
    fields: Mapping[str, Any] = {}
    fields_after: Mapping[str, Any] = {}


class Spoken(msgspec.Struct, frozen=True):
    """An answer before and after a filter, as documentation and as a test.

    ``before`` is the content in the pieces in which it arrives; ``after`` must be the same for any other cut.
    """

    title: str
    options: Mapping[str, Any]
    before: Sequence[str]
    after: str
    context: Context = Context(now=0.0)


class Filter(BaseModel):
    """A step of a pipeline, whose fields are its options, with the same names as the keys in YAML."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class RequestFilter(Filter):
    """A step between the client's request and the model's.

    It does no I/O, does not change its arguments, and returns the same result for the same arguments.
    """

    examples: ClassVar[tuple[Example, ...]] = ()

    idempotent: ClassVar[bool] = True
    """Whether applying the filter twice is the same as once, with any options."""
    keeps_system: ClassVar[bool] = True
    """Whether the result has the same system and developer messages, and no others."""
    keeps_words: ClassVar[bool] = True
    """Whether the newest user message of the result ends with the user's newest words."""
    keeps_past: ClassVar[bool] = True
    """Whether the result for a turn stays the same when other turns follow."""
    leaves_out: ClassVar[str | None] = None
    """The name in ``degraded`` where the result has fewer messages; ``None`` where nothing is lost."""

    def apply(self, messages: Messages, context: Context) -> Messages:
        """Returns the messages for the next step."""
        return messages

    def set(self, fields: Fields, context: Context) -> Fields:
        """Returns the request's other fields for the next step."""
        return fields


class Stage(Protocol):
    """A filter at work on one choice of one answer."""

    def feed(self, delta: Delta) -> Delta:
        """Returns the filtered delta; the very same object where nothing changes, so that its bytes pass."""
        ...

    def close(self) -> Delta:
        """Returns the text that was held back, if any. It is called exactly once, however the answer ends."""
        ...


class AnswerFilter(Filter):
    """A step between the model's answer and the client's, for streams and whole answers alike."""

    spoken: ClassVar[tuple[Spoken, ...]] = ()

    def open(self, context: Context) -> Stage | None:
        """Returns a new stage for one choice; ``None`` where the filter does not change deltas."""
        return None

    def first(self, context: Context) -> Mapping[str, Any] | None:
        """Returns a chunk to send before all others of a stream, or ``None``."""
        return None
