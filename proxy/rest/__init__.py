"""What all paths under memory have in common: whose they are, how ids are read, what failures say.

A path has ``methods``, and a body that is none is answered with ``advice``. Of sessions there are
``sessions`` (``carried`` in and out), their ``state``, ``summaries`` and ``turns``; of persons ``persons``,
``facts`` and ``system_messages``; of agents ``agents``. ``agora`` takes what that engine tells, and
``engine`` tells it things.
"""

from collections.abc import Awaitable, Callable, Mapping
from functools import wraps
from typing import Any, Final, TypeVar
from urllib.parse import unquote_to_bytes

import msgspec
from pydantic import AfterValidator, BaseModel, ValidationError
from starlette.requests import Request
from starlette.responses import Response

from proxy.edge import body
from proxy.errors import MemoryUnavailable, NotFound, RequestError
from proxy.memory.errors import StoreError
from proxy.memory.memory import Archiving, Memory
from proxy.memory.privacy import People
from proxy.memory.session import UNREADABLE
from proxy.memory.stores.store import Key, Owner
from proxy.parts import Parts
from proxy.rest.advice import refusal
from proxy.rest.methods import Endpoint, Methods
from proxy.turn.identity import identifier

Model = TypeVar("Model", bound=BaseModel)

ID: Final = "a text of 1 to 256 characters without control characters, but not . or .."


def answering(endpoints: Mapping[str, Endpoint]) -> Methods:
    """A path's methods; where the store fails, or nobody can read it, MemoryUnavailable."""
    return Methods({method: _reported(endpoint) for method, endpoint in endpoints.items()})


def memory_of(request: Request) -> Memory:
    """What is remembered with; raises NotFound where nothing is."""
    parts: Parts = request.scope["parts"]
    if parts.memory is None:
        raise NotFound("Nothing is remembered here; set 'memory:' in the configuration.", code="memory_off")
    return parts.memory


def people_of(request: Request) -> People:
    """All that is held of persons; without memory there is what is kept of turns to be looked at."""
    parts: Parts = request.scope["parts"]
    return parts.people


def archiving_of(request: Request) -> Archiving:
    """Where turns are kept for good; raises NotFound where they are not."""
    archiving = memory_of(request).archiving
    if archiving is None:
        advice = "keep sessions in SQL, or set ARCHIVE_URL"
        raise NotFound(f"There is no archive; {advice}.", code="archive_off")
    return archiving


def key_of(request: Request) -> Key:
    """The session, or the agent, that the path names, under the caller's tenant; raises RequestError."""
    return Key(request.scope["tenant"], path_id(request))


def person_of(request: Request) -> Owner:
    """The person whom the path names, under the caller's tenant; raises RequestError."""
    return Owner(request.scope["tenant"], path_id(request))


def unheld(key: Key) -> NotFound:
    """What is said of a session that is not held."""
    return NotFound(f"There is no session '{key.session}'.", param="id", code="session_not_found")


def path_id(request: Request, name: str = "id") -> str:
    """The id that stands in the path, decoded once; raises RequestError for what is none."""
    try:
        found = identifier(unquote_to_bytes(request.path_params[name]).decode("utf-8", "strict"))
    except UnicodeDecodeError:
        raise RequestError("The id in the path is not UTF-8.", param=name) from None
    if found is None:
        raise RequestError(f"'{name}' must be {ID}.", param=name)
    return found


def at_most(most: int) -> AfterValidator:
    """A number that counts as ``most`` where it is larger."""
    return AfterValidator(lambda number: min(number, most))


async def content(request: Request) -> bytes:
    """The body, whatever its type is said to be: forms of other sites have been refused by then."""
    parts: Parts = request.scope["parts"]
    return await body.read(request.receive, request.headers, parts.max_body)


def checked(model: type[Model], written: bytes) -> Model:
    """The body as a value; raises RequestError, which names the field and never repeats what stood there."""
    try:
        return model.model_validate_json(written)
    except ValidationError as error:
        raise refusal(error, model) from None


def checked_query(model: type[Model], request: Request) -> Model:
    """The query's parameters as a value; raises RequestError."""
    try:
        return model.model_validate(dict(request.query_params))
    except ValidationError as error:
        raise refusal(error, model) from None


def answer(found: Any, status: int = 200) -> Response:
    """A value as JSON."""
    return Response(msgspec.json.encode(found), status, media_type="application/json")


def _reported(endpoint: Callable[[Request], Awaitable[Response]]) -> Endpoint:
    @wraps(endpoint)
    async def reporting(request: Request) -> Response:
        try:
            return await endpoint(request)
        except (StoreError, *UNREADABLE):
            raise MemoryUnavailable("Memory does not answer now; try again later.") from None

    return reporting
