"""What Agora's engine tells of its agents: when they come and go, and all that was said."""

import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from proxy.admission.keys import Webhook
from proxy.errors import RequestError, Unauthorized
from proxy.http import body
from proxy.memory.errors import SessionDeleted
from proxy.memory.memory import Memory
from proxy.memory.merge import calls
from proxy.memory.merge.calls import Agent, plausible_time
from proxy.memory.redaction.view import RedactedView, WindowRedaction
from proxy.memory.session import Session
from proxy.memory.stores.store import Key
from proxy.rest.endpoint import by_method, json_response, memory_of
from proxy.runtime import Runtime
from proxy.turn import request
from proxy.turn.identity import identifier

_JOINED, _LEFT, _HISTORY = 101, 102, 103

Change = Callable[[Session], tuple[Session, int | None]]


class Notice(msgspec.Struct, frozen=True):
    """One notice; ``noticeId`` is the same whenever it is sent again. Times are as Agora writes them."""

    noticeId: str | int | float  # noqa: N815 - as Agora writes it
    eventType: int  # noqa: N815
    payload: Mapping[str, Any] | None = None
    notifyMs: int | float | None = None  # noqa: N815

    @property
    def id(self) -> str:
        """What tells it from others."""
        return str(self.noticeId)

    @property
    def told(self) -> Mapping[str, Any]:
        """What it tells."""
        return self.payload or {}

    @property
    def agent(self) -> Agent:
        """The agent that it tells of, as far as it is named."""
        told = self.told
        name = identifier(told.get("agent_id")) or ""
        start, stop = plausible_time(told.get("start_ts")), plausible_time(told.get("stop_ts"))
        return Agent(id=name, start=start, stop=stop)

    @property
    def at(self) -> float | None:
        """When what it tells came about; of a history, when the first of it may have."""
        start, stop = self.agent.start, self.agent.stop
        told = start or stop if self.eventType == _HISTORY else stop or start
        return told or plausible_time(self.notifyMs)


_EXAMPLE: Final = '{"noticeId": "...", "eventType": 101, "payload": {...}}'
_decoder: Final = msgspec.json.Decoder(Notice)


def routes() -> list[Route]:
    """The path; the request's scope holds ``runtime``."""
    return [Route("/webhooks/agora", by_method({"POST": _notified}))]


async def _notified(request: Request) -> Response:
    runtime: Runtime = request.scope["runtime"]
    webhook, content = await _signed(request, runtime)
    notice = _read(content)
    taken = await _take(memory_of(request), webhook.tenant, notice)
    return json_response({"status": "taken" if taken else "ignored"})


async def _signed(request: Request, runtime: Runtime) -> tuple[Webhook, bytes]:
    """The body, once its signature fits."""
    if runtime.agora_webhook is None:
        fault = "No notice is believed without a secret: set AGORA_WEBHOOK_SECRET."
        raise Unauthorized(fault, code="webhooks_off")
    content = await body.read_body(request.receive, request.headers, runtime.max_body)
    if not runtime.agora_webhook.verify(request.headers, content):
        fault = "The notice is not signed with AGORA_WEBHOOK_SECRET."
        raise Unauthorized(fault, code="invalid_signature")
    return runtime.agora_webhook, content


def _read(content: bytes) -> Notice:
    try:
        return _decoder.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _mended(content)


def _mended(content: bytes) -> Notice:
    """A notice whose only fault is half a character, as a transcript cut inside an emoji has."""
    fields = request.raw_fields(content, _EXAMPLE)
    try:
        return _decoder.decode(msgspec.json.encode(fields))
    except (msgspec.DecodeError, RecursionError):
        raise RequestError(f"The body is no notice; send {_EXAMPLE}.") from None


async def _take(memory: Memory, tenant: str, notice: Notice) -> bool:
    """Whether the notice tells of a session; one that has been taken before changes nothing."""
    now = time.time()
    channel, change = identifier(notice.told.get("channel")), _change(notice, now, memory.veil)
    if channel is None or change is None:
        return False
    agent = notice.agent
    at = notice.at or now
    try:
        await memory.recorder.revise(Key(tenant, channel), _once(notice, agent, change), at=at)
    except SessionDeleted:  # what was forgotten since is not told of again
        return False
    return True


def _once(notice: Notice, agent: Agent, change: Change) -> Callable[[Session], Session]:
    def changed(session: Session) -> Session:
        if calls.has_seen(session, notice.id):
            return session
        session, life = change(session)
        return calls.with_event(session, notice.id, agent, life)

    return changed


def _change(notice: Notice, now: float, veil: WindowRedaction) -> Change | None:
    """What a notice does to its session; nothing for one that is not known."""
    agent = notice.agent
    if notice.eventType == _JOINED:
        begun = agent.start or plausible_time(notice.notifyMs) or now
        joining = msgspec.structs.replace(agent, start=begun)
        return lambda session: calls.agent_joined(session, joining)
    if notice.eventType == _LEFT:
        return lambda session: calls.agent_left(session, agent)
    contents = notice.told.get("contents")
    if notice.eventType == _HISTORY and isinstance(contents, list):
        said = calls.history_messages(contents)
        return lambda session: _told(*veil.view(session, said), agent, now)
    return None


def _told(session: Session, veiled: RedactedView, agent: Agent, now: float) -> tuple[Session, int | None]:
    return calls.apply_history(session, agent, veiled.window, now=now)
