"""Webhook events of Agora's voice platform: agents join and leave, and the history of a call."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
from starlette.responses import Response

from proxy.clock import wall_time
from proxy.errors import RequestError, Unauthorized
from proxy.memory.errors import SessionDeleted
from proxy.memory.merge import calls
from proxy.memory.merge.calls import Agent, plausible_time
from proxy.memory.redacted_view import WindowRedaction
from proxy.memory.session import Session
from proxy.memory.stores.store import Key
from proxy.rest.endpoint import ApiRequest, Routes, json_response
from proxy.turn.identity import identifier
from proxy.turn.request import raw_fields

_JOINED, _LEFT, _HISTORY = 101, 102, 103

WebhookChange = Callable[[Session], tuple[Session, int | None]]
"""Returns a changed session, and the number of the call that was changed, or ``None``."""


class WebhookEvent(msgspec.Struct, frozen=True, rename="camel"):
    """A webhook event; its ``notice_id`` is the same when it is sent again.

    Times are by Agora's clock, and ``notify_ms`` is the time of sending.
    """

    notice_id: str | int | float
    event_type: int
    payload: Mapping[str, Any] | None = None
    notify_ms: int | float | None = None

    def agent(self, now: float) -> Agent:
        """Returns the agent of an event that arrived at ``now``; its id is empty where the event has none.

        Times are converted to our clock by how long before the sending they were, as Agora's clock may be
        ahead or behind.
        """
        payload, sent_at = self.payload or {}, plausible_time(self.notify_ms)

        def by_our_clock(name: str) -> float | None:
            at = plausible_time(payload.get(name))
            if at is None:
                return None
            return min(now, at if sent_at is None else now - (sent_at - at))

        return Agent(
            id=identifier(payload.get("agent_id")) or "",
            start=by_our_clock("start_ts"),
            stop=by_our_clock("stop_ts"),
        )


_EXAMPLE: Final = '{"noticeId": "...", "eventType": 101, "payload": {...}}'
_decoder: Final = msgspec.json.Decoder(WebhookEvent)


async def _receive(request: ApiRequest) -> Response:
    """Applies a signed event to its session; an event that was applied before changes nothing."""
    webhook = request.runtime.agora_webhook
    if webhook is None:
        message = "Webhook events are refused without a webhook secret: set AGORA_WEBHOOK_SECRET."
        raise Unauthorized(message, code="webhooks_off")
    body = await request.body()
    if not webhook.verify(request.http.headers, body):
        message = "The webhook event is not signed with AGORA_WEBHOOK_SECRET."
        raise Unauthorized(message, code="invalid_signature")
    event = await asyncio.to_thread(_decode, body)
    memory, now = request.memory, wall_time()
    channel = identifier((event.payload or {}).get("channel"))
    change = await asyncio.to_thread(_change_of, event, now, memory.redaction)
    if channel is None or change is None:
        return json_response({"status": "ignored"})
    event_id, agent = str(event.notice_id), event.agent(now)
    # The first message of a history may be as old as the agent's start.
    at = agent.start or agent.stop if event.event_type == _HISTORY else agent.stop or agent.start

    def apply(session: Session) -> Session:
        if calls.has_seen(session, event_id):
            return session
        session, call = change(session)
        return calls.with_event(session, event_id, agent, call)

    try:
        await memory.recorder.revise(Key(webhook.tenant, channel), apply, at=at or now)
    except SessionDeleted:  # the session was erased after the event
        return json_response({"status": "ignored"})
    return json_response({"status": "taken"})


def _decode(body: bytes) -> WebhookEvent:
    try:
        return _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        # A transcript that is cut inside an emoji has a lone surrogate, which the decoder refuses.
        fields = raw_fields(body, _EXAMPLE)
    try:
        return _decoder.decode(msgspec.json.encode(fields))
    except (msgspec.DecodeError, RecursionError):
        raise RequestError(f"The body is not a webhook event; send {_EXAMPLE}.") from None


def _change_of(event: WebhookEvent, now: float, redaction: WindowRedaction) -> WebhookChange | None:
    """Returns the change that an event makes to its session; ``None`` for an unknown event."""
    agent = event.agent(now)
    if event.event_type == _JOINED:
        joining = msgspec.structs.replace(agent, start=agent.start or now)
        return lambda session: calls.agent_joined(session, joining)
    if event.event_type == _LEFT:
        return lambda session: calls.agent_left(session, agent)
    contents = (event.payload or {}).get("contents")
    if event.event_type == _HISTORY and isinstance(contents, list):
        messages = calls.history_messages(contents)

        def apply_history(session: Session) -> tuple[Session, int | None]:
            session, view = redaction.view(session, messages)
            return calls.apply_history(session, agent, view.window, now=now)

        return apply_history
    return None


ROUTES: Final[Routes] = (("POST", "/webhooks/agora", _receive),)
