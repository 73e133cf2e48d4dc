"""The base of the API's endpoints: requests with their ids, memory, body and query, and responses."""

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
"""The largest number of entries on a page of a list, and the number without a ``limit``."""
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
    """The model of a body or a query; unknown keys are refused."""

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
        """The parameters in the query; the last one of a name counts."""
        return QueryParams(self.http.query_string)

    def query_as(self, model: type[Model]) -> Model:
        """Validates the query as a ``model``; raises RequestError."""
        try:
            return model.model_validate(dict(self.query))
        except ValidationError as error:
            raise _request_error(error, model) from None

    @property
    def page(self) -> tuple[str, int]:
        """The id after which a page of a list begins, and its length; raises RequestError."""
        after, text = self.query.get("after", ""), self.query.get("limit")
        after = checked_id(after, "after") if after else ""
        if text is None:
            return after, PAGE
        digits = text.lstrip("0")
        if not (digits and text.isascii() and text.isdigit()):
            raise RequestError("'limit' must be an integer of at least 1.", param="limit")
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
        """The archive with its search; raises NotFound where there is none."""
        archiving = self.memory.archiving
        if archiving is None:
            raise archive_off()
        return archiving

    @property
    def key(self) -> Key:
        """The key of the session, or of the agent, in the path; raises RequestError."""
        return Key(self.tenant, self.id())

    @property
    def owner(self) -> Owner:
        """The user in the path; raises RequestError."""
        return Owner(self.tenant, self.id())

    def id(self, name: str = "id") -> str:
        """The id in the path, decoded once; raises RequestError for an invalid one."""
        try:
            decoded = unquote_to_bytes(self.params[name]).decode()
        except UnicodeDecodeError:
            raise RequestError("The id in the path is not UTF-8.", param=name) from None
        return checked_id(decoded, name)

    async def body(self, most: BodyLimit = _SMALL_BODY) -> bytes:
        """Reads the body, with any content type, since forms of other sites were already refused.

        Raises TooLarge beyond ``most`` or ``listen.max_body``.
        """
        limit = self.runtime.max_body
        most = most if most.size < limit else BodyLimit(limit, most.structure)
        return await read_body(self.http.receive, self.http.headers, most)

    async def admit(self, size: int = 0) -> None:
        """Admits a request within its key's limits, until its answer is sent; ``size`` is the body in bytes.

        The size of the answer counts as well. Raises LimitExceeded.
        """
        admitted = self.runtime.admit_by_size(self.tenant, size, self.http.reply)
        await self.admission.enter_async_context(admitted)


Endpoint = Callable[[ApiRequest], Awaitable[Response]]
Routes = Sequence[tuple[str, str, Endpoint]]


def archive_off() -> NotFound:
    """The error for endpoints that need an archive."""
    return NotFound("There is no archive; keep sessions in SQL, or set ARCHIVE_URL.", code="archive_off")


def page_response(data: Sequence[Mapping[str, object]], *, has_more: bool) -> Response:
    """A page of entries with ids, in the form of OpenAI's lists."""
    last = data[-1]["id"] if data else None
    return json_response({"object": "list", "data": data, "has_more": has_more, "last_id": last})


def session_not_found(key: Key) -> NotFound:
    """The error for a session that is not stored."""
    return NotFound(f"There is no session '{key.session}'.", param="id", code="session_not_found")


def checked_id(value: object, name: str) -> str:
    """Validates an id; raises RequestError, which names ``name``."""
    id_ = identifier(value)
    if id_ is None:
        raise RequestError(f"'{name}' must be {ID}.", param=name)
    return id_


def json_response(content: Any, status: int = 200) -> Response:
    """A response with a value as JSON."""
    return Response(msgspec.json.encode(content), status, media_type="application/json")


def long_response(content: Any, status: int = 200) -> Response:
    """A response with a value as JSON that may be long, sent in slices that are encoded in a thread.

    Encoding a large value at once, or writing all its bytes, would block the event loop.
    """
    return StreamingResponse(json_slices(content), status, media_type="application/json")


def validated(model: type[Model], body: bytes) -> Model:
    """Validates a body as a ``model``; raises RequestError, which names the field but not its value.

    Half a character is no error, as in a chat request.
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
    """A validator that replaces a larger number by ``limit``."""
    return AfterValidator(lambda number: min(number, limit))


def _request_error(error: ValidationError, model: type[BaseModel]) -> RequestError:
    """The errors of the first invalid field, in one sentence."""
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
    """The path of an error: the field's name and list indexes, without the names of tried types."""
    name, *steps = error["loc"]
    return ".".join([str(name), *(str(step) for step in steps if isinstance(step, int))])
