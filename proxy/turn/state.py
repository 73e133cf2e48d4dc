"""The ``Turn``: one value that fills up from the request to the record of its answer."""

from collections.abc import Mapping, Sequence
from typing import Final, Self

import msgspec

from filters.base import Context, Messages, Snapshot
from filters.message import Message
from proxy.memory.session import NO_ATTEMPT, Attempt, ShownCall, ShownFacts
from proxy.memory.stores.store import Key
from proxy.memory.view import RetractedTexts, SessionView
from proxy.turn.chain import FilterLog
from proxy.turn.identity import Identity
from proxy.turn.pipeline import Pipeline
from proxy.turn.request import ClientRequest, read_request
from proxy.upstream.body import ChatRequest

_CREDENTIALS: Final = frozenset({"authorization", "proxy-authorization", "api-key", "x-api-key", "cookie"})


class Turn(msgspec.Struct, kw_only=True, eq=False):
    """One turn: each step of ``answer_turn`` fills some of its fields.

    ``key`` names the session in memory, and is ``None`` where nothing is remembered. ``turn_id`` is the
    platform's number of the turn.
    """

    pipeline: Pipeline
    request: ClientRequest
    identity: Identity
    key: Key | None
    turn_id: int | None
    attempt: Attempt = NO_ATTEMPT

    size: int = 0
    """The bytes of the request's body."""
    is_memorable: bool = True
    """Whether memory takes in as much speech as the window has."""
    window: Sequence[Message]
    """The client's messages; once memory is read, interrupted answers in them are marked."""
    view: SessionView | None = None
    shown_facts: ShownFacts | None = None
    shown_call: ShownCall | None = None
    """The earlier call that the prompt shows, where the session does not have it yet."""
    context: Context = Context(now=0.0)

    filter_log: FilterLog
    chat: ChatRequest = ChatRequest(model=None, headers={}, fields={}, messages=(), streaming=False)
    """The request as the filters leave it."""

    @property
    def marked_request(self) -> ClientRequest:
        """The client's request with the interrupted answers marked; the same object where none is."""
        if self.window is self.request.messages:
            return self.request
        return msgspec.structs.replace(self.request, messages=self.window)

    @property
    def retracted_texts(self) -> RetractedTexts:
        """What the archive has of this session and was retracted since."""
        view = self.view
        if view is None:
            return RetractedTexts()
        return RetractedTexts(self.identity.session, view.session, view.alignment)


class TurnContent(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The content of a turn, as bytes that are decoded only where a trace is looked at.

    ``body`` is the client's, and ``sent_body`` what the upstream that was asked last was sent, empty where
    none was. ``marked`` are the client's messages with interrupted answers marked, if any were. ``memory`` is
    the snapshot that filters had at ``now``, and ``last_call_speakers`` are the speakers of its last call.
    """

    headers: Mapping[str, str]
    query: Mapping[str, str]
    body: bytes
    identity: Identity
    marked: Messages | None
    now: float
    memory: Snapshot
    last_call_speakers: Sequence[str] = msgspec.field(default=(), name="told_speakers")
    sent_body: bytes = msgspec.field(default=b"", name="sent")

    def without_credentials(self, sent_body: bytes) -> Self:
        """The content without secrets in its headers, and with the body that was sent for it."""
        headers = {name: value for name, value in self.headers.items() if name not in _CREDENTIALS}
        return msgspec.structs.replace(self, headers=headers, sent_body=sent_body)

    @property
    def request(self) -> ClientRequest:
        """The client's request."""
        return read_request(self.body, self.headers, self.query)

    @property
    def messages(self) -> Messages:
        """The client's messages."""
        return self.request.messages

    @property
    def marked_request(self) -> ClientRequest:
        """The client's request with the interrupted answers marked."""
        if self.marked is None:
            return self.request
        return msgspec.structs.replace(self.request, messages=self.marked)

    @property
    def is_streaming(self) -> bool:
        """Whether the client asked for a stream."""
        return self.request.field("stream") is True

    @property
    def size(self) -> int:
        """The bytes of the client's body."""
        return len(self.body)
