"""What the endpoints of the API share: a request with its ids, memory, body and query, and its answer."""

import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, Final, TypeVar
from urllib.parse import unquote_to_bytes

import msgspec
from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails
from starlette.datastructures import QueryParams
from starlette.responses import Response, StreamingResponse

from proxy.errors import NotFound, RequestError, expected_type
from proxy.http.reply import json_slices
from proxy.http.request import BodyLimit, Request, read_body
from proxy.memory.memory import Archiving, Memory
from proxy.memory.stores.store import Key, Owner
from proxy.runtime import Runtime
from proxy.traces import Traces
from proxy.turn.identity import identifier
from proxy.turn.request import mend_json

Model = TypeVar("Model", bound="ApiModel")
LARGEST_PAGE, PAGE = 100, 50
"""How much one page of a list has at the most, and where no ``limit`` is given."""
_SMALL_BODY: Final = BodyLimit(1_000_000, setting=None)
ID: Final = "a text of 1 to 256 characters without control or replacement characters, but not . or .."

_EXPECTED: Final = "expected "
_ARRAY, _OBJECT = "expected an array", "expected an object"
_ADVICE: Final[Mapping[str, str]] = {
    "value_error": "{error}",  # of a check of ours
    "string_unicode": "expected a string in UTF-8",
    "list_type": _ARRAY,
    "dict_type": _OBJECT,
    "greater_than": "expected a number above {gt:g}",
    "greater_than_equal": "expected a number of at least {ge:g}",
    "less_than_equal": "expected a number of at most {le:g}",
    "string_too_short": "expected a string of {min_length} or more characters",
    "string_too_long": "expected a string of at most {max_length} characters",
    "literal_error": "expected {expected}",
}
_TYPES: Final = {"array": _ARRAY, "object": _OBJECT}


class ApiModel(BaseModel):
    """What a client writes as a body, or in the query: frozen, and without unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class ApiRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request of a tenant to the API; ``params`` are those of the path, undecoded.

    ``admission`` ends once the answer has been sent.
    """

    http: Request
    runtime: Runtime
    traces: Traces
    tenant: str
    params: Mapping[str, str]
    admission: AsyncExitStack

    @property
    def query(self) -> Mapping[str, str]:
        """The parameters behind the path's ``?``; of a name, the last one counts."""
        return QueryParams(self.http.query_string)

    def query_as(self, model: type[Model]) -> Model:
        """These parameters as a value; raises RequestError."""
        try:
            return model.model_validate(dict(self.query))
        except ValidationError as error:
            raise _request_error(error, model) from None

    @property
    def page(self) -> tuple[str, int]:
        """The id behind which a page of a list begins, and how many it has; raises RequestError."""
        after, text = self.query.get("after", ""), self.query.get("limit")
        after = checked_id(after, "after") if after else ""
        if text is None:
            return after, PAGE
        digits = text.lstrip("0")
        if not (digits and text.isascii() and text.isdigit()):
            raise RequestError("'limit' must be a number from 1 on.", param="limit")
        return after, min(int(digits[:9]), LARGEST_PAGE)

    @property
    def memory(self) -> Memory:
        """The memory; raises NotFound where there is none."""
        memory = self.runtime.memory
        if memory is None:
            message = "Nothing is remembered here; set 'memory:' in the configuration."
            raise NotFound(message, code="memory_off")
        return memory

    @property
    def archiving(self) -> Archiving:
        """The archive and what belongs to it; raises NotFound where there is none."""
        archiving = self.memory.archiving
        if archiving is None:
            raise archive_off()
        return archiving

    @property
    def key(self) -> Key:
        """The session, or the agent, that the path names; raises RequestError."""
        return Key(self.tenant, self.id())

    @property
    def owner(self) -> Owner:
        """The user whom the path names; raises RequestError."""
        return Owner(self.tenant, self.id())

    def id(self, name: str = "id") -> str:
        """The id in the path, decoded once; raises RequestError for what cannot be one."""
        try:
            decoded = unquote_to_bytes(self.params[name]).decode()
        except UnicodeDecodeError:
            raise RequestError("The id in the path is not UTF-8.", param=name) from None
        return checked_id(decoded, name)

    async def body(self, most: BodyLimit = _SMALL_BODY) -> bytes:
        """The body, whatever its content type: forms of other sites have been refused by then.

        It has as much as ``most`` says, and no more than ``listen.max_body``.
        """
        limit = self.runtime.max_body
        most = most if most.size < limit else BodyLimit(limit, most.structure)
        return await read_body(self.http.receive, self.http.headers, most)

    async def admit(self, size: int = 0) -> None:
        """Admits a request whose body has ``size`` bytes within its key's limits, until its answer is sent.

        Raises LimitExceeded. What its answer weighs counts as well.
        """
        admitted = self.runtime.admit_by_size(self.tenant, size, self.http.reply)
        await self.admission.enter_async_context(admitted)


Endpoint = Callable[[ApiRequest], Awaitable[Response]]
Routes = Sequence[tuple[str, str, Endpoint]]


def archive_off() -> NotFound:
    """The error for what an archive would have."""
    return NotFound("There is no archive; keep sessions in SQL, or set ARCHIVE_URL.", code="archive_off")


def page_response(data: Sequence[Mapping[str, object]], *, has_more: bool) -> Response:
    """A page of what has ids, as OpenAI lists things."""
    last = data[-1]["id"] if data else None
    return json_response({"object": "list", "data": data, "has_more": has_more, "last_id": last})


def session_not_found(key: Key) -> NotFound:
    """The error for a session that is not stored."""
    return NotFound(f"There is no session '{key.session}'.", param="id", code="session_not_found")


def checked_id(value: object, name: str) -> str:
    """A value as an id; raises RequestError, which names ``name``, for what cannot be one."""
    id_ = identifier(value)
    if id_ is None:
        raise RequestError(f"'{name}' must be {ID}.", param=name)
    return id_


def json_response(content: Any, status: int = 200) -> Response:
    """A value as JSON."""
    return Response(msgspec.json.encode(content), status, media_type="application/json")


def long_response(content: Any, status: int = 200) -> Response:
    """A value as JSON that may be long, sent slice by slice; each is encoded in a thread.

    Nothing else runs while a large value is encoded, nor while its bytes are handed to the connection.
    """
    return StreamingResponse(json_slices(content), status, media_type="application/json")


def validated(model: type[Model], body: bytes) -> Model:
    """A body as a value; raises RequestError, which names the field and never repeats what stood there.

    Half a character is no error, as it is none in a chat request.
    """
    try:
        try:
            return model.model_validate_json(body)
        except ValidationError as error:
            if not _is_no_json(error):
                raise
            with contextlib.suppress(ValueError, RecursionError):
                body = mend_json(body)
            return model.model_validate_json(body)
    except ValidationError as error:
        raise _request_error(error, model) from None


def at_most(limit: int) -> AfterValidator:
    """Validates a number, which counts as ``limit`` where it is larger."""
    return AfterValidator(lambda number: min(number, limit))


def _request_error(error: ValidationError, model: type[BaseModel]) -> RequestError:
    """The first field's errors in one sentence."""
    details = error.errors(include_url=False, include_input=False)
    keys = ", ".join(model.model_fields)
    if _is_no_json(error):
        return RequestError(f"The body is not JSON; write an object with the keys: {keys}.")
    if not details[0]["loc"]:
        return RequestError(f"Write an object as JSON; its keys are: {keys}.")
    path = _path(details[0])
    details = [each for each in details if _path(each) == path]
    types = {each["type"] for each in details}
    if "extra_forbidden" in types:
        message = f"'{path}': unknown key; available: {keys}."
    elif "missing" in types:
        type_ = model.model_json_schema()["properties"][path].get("type", "")
        expected = _TYPES.get(type_) or expected_type(f"{type_}_type") or "expected a value"
        message = f"'{path}' is missing; {expected}. The keys are: {keys}."
    else:
        kinds = [(each["type"], each.get("ctx", {})) for each in details]
        advice = [
            (_ADVICE.get(kind) or expected_type(kind) or "expected another value").format(**context)
            for kind, context in kinds
        ]
        first, *others = dict.fromkeys(advice)
        message = f"'{path}': {' or '.join([first, *(other.removeprefix(_EXPECTED) for other in others)])}."
    return RequestError(message, param=path)


def _is_no_json(error: ValidationError) -> bool:
    return error.errors(include_url=False, include_input=False)[0]["type"] == "json_invalid"


def _path(error: ErrorDetails) -> str:
    """Where the error is; behind a name, only numbers are the client's: others say which type was tried."""
    name, *steps = error["loc"]
    return ".".join([str(name), *(str(step) for step in steps if isinstance(step, int))])
