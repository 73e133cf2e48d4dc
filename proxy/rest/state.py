"""The state of a session over HTTP: a small JSON object of the client's own."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from proxy import rest
from proxy.errors import Conflict, RequestError, TooLarge
from proxy.memory.session import Session, decode, encode
from proxy.memory.stores.store import UNRENEWED, Put

State = dict[str, Any]

_MOST: Final = 8_000
"""How many bytes a state may have, as JSON: it is read with each turn."""
_ATTEMPTS: Final = 10


def routes(root: str) -> list[Route]:
    """The path under a session's own."""
    return [Route(f"{root}/{{id}}/state", rest.answering({"GET": _shown, "PUT": _put, "PATCH": _patched}))]


async def _shown(request: Request) -> Response:
    memory, key = rest.memory_of(request), rest.key_of(request)
    held = await memory.store.read(key, leisure=True)
    if held is None:
        raise rest.unheld(key)
    return rest.answer(decode(held.blob).state)


async def _put(request: Request) -> Response:
    given = stated(await rest.content(request))
    return await _changed(request, lambda _: given)


async def _patched(request: Request) -> Response:
    """Merges at the top level; ``null`` takes a name out."""
    given = stated(await rest.content(request))
    return await _changed(request, lambda state: _merged(state, given))


def _merged(state: Mapping[str, Any], patch: Mapping[str, Any]) -> State:
    return {name: value for name, value in {**state, **patch}.items() if value is not None}


async def _changed(request: Request, change: Callable[[State], State]) -> Response:
    memory, key = rest.memory_of(request), rest.key_of(request)
    for _ in range(_ATTEMPTS):
        held = await memory.store.read(key, leisure=True)
        if held is None:
            raise rest.unheld(key)
        session = decode(held.blob)
        state = _bounded(memory.veil.redaction.value(change(session.state)))
        blob = encode(_with(session, state))
        if await memory.store.write(key, Put(blob, version=held.version, ttl=UNRENEWED, leisure=True)):
            return rest.answer(state)
    raise Conflict("Others are writing this session; try again.")


def _with(session: Session, state: State) -> Session:
    return msgspec.structs.replace(session, state=state)


def stated(written: bytes, param: str | None = None) -> State:
    """A state as it may be held; raises RequestError, which names ``param``, and TooLarge."""
    try:
        given = msgspec.json.decode(written, type=State)
        decode(encode(Session(state=given)))  # so that what is written can be read
    except (ValueError, OverflowError, RecursionError):  # msgspec's errors are ValueErrors
        about = f"'{param}'" if param else "The state"
        fault = f"{about} must be a JSON object, with no number beyond 64 bits."
        raise RequestError(fault, param=param) from None
    return _bounded(given, param)


def _bounded(state: State, param: str | None = None) -> State:
    if len(msgspec.json.encode(state)) > _MOST:
        about = f"'{param}'" if param else "A state"
        raise TooLarge(f"{about} has at most {_MOST} bytes.", param=param)
    return state
