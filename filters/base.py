"""What a filter is: a frozen value made from its options, and pure functions over what passes by."""

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
"""What one event adds to one choice; a whole answer's message is one large delta."""


class Snapshot(msgspec.Struct, frozen=True, gc=False):
    """What memory holds of a session at the moment of a turn; empty where nothing is remembered.

    ``dropped`` is what was heard in this call and stands before the window that the client
    replays; ``summaries`` stand for what was said before it, oldest first. ``began`` is when this call began,
    in seconds since 1970; ``speakers`` are the names of its speakers. ``episodes`` is what the agent
    did lately, newest first. ``state`` is what the client keeps with the session. ``recalled`` is what
    memory holds beyond this conversation that may bear on the newest words, best first. ``facts`` are what is
    known of the caller and stays as it is from turn to turn, oldest first; ``news`` came to be known since.
    ``profile`` is what the operator tells of the caller, and ``last_call`` an earlier call under any session;
    both stay as they are until the call ends.
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
    """What a filter may know beside the messages. ``now`` is in seconds since 1970.

    ``count`` tells how many tokens a text has: an estimate, where nothing better is at hand.
    """

    now: float
    tenant: str = "default"
    session: str | None = None
    user: str | None = None
    memory: Snapshot = Snapshot()
    count: CountTokens = in_text


class Example(msgspec.Struct, frozen=True):
    """A conversation before and after a filter: its documentation, and its test.

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
    """An answer as it comes from the model and as it goes to the client: documentation, and a test.

    ``before`` is content in the pieces in which it streams; cut anywhere else, ``after`` must be the same.
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
    """A second time changes nothing more, whatever the options."""
    keeps_system: ClassVar[bool] = True
    """System and developer messages come out as they went in, and no others."""
    keeps_words: ClassVar[bool] = True
    """The newest words of the user come out as the end of the newest user message."""
    keeps_past: ClassVar[bool] = True
    """What comes out for a turn stays the same, whatever turns follow it."""
    leaves_out: ClassVar[str | None] = None
    """What the client is told when fewer messages come out than went in; ``None`` where nothing is lost."""

    def apply(self, messages: Messages, context: Context) -> Messages:
        """The messages as the next step sees them."""
        return messages

    def set(self, fields: Fields, context: Context) -> Fields:
        """The request's other fields as the next step sees them."""
        return fields


class Stage(Protocol):
    """One choice of one answer on its way through one filter."""

    def feed(self, delta: Delta) -> Delta:
        """What goes on of a delta; the very same object where nothing changes, so that its bytes pass."""
        ...

    def close(self) -> Delta:
        """What was held back, if anything. Called exactly once, whichever way the answer ends."""
        ...


class AnswerFilter(Filter):
    """A step between the model's answer and the client's, for streams and whole answers alike."""

    spoken: ClassVar[tuple[Spoken, ...]] = ()

    def open(self, context: Context) -> Stage | None:
        """A fresh stage for one choice; ``None`` where the filter has nothing to do with deltas."""
        return None

    def first(self, context: Context) -> Mapping[str, Any] | None:
        """An event to stand before all others of a stream, if any."""
        return None
