"""The settings of upstreams and pipelines, with the tests of a pipeline."""

from collections.abc import Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal, get_args

from pydantic import (
    AwareDatetime,
    Field,
    SecretStr,
    TypeAdapter,
    ValidationInfo,
)

from filters.message import Role
from filters.option_types import Whole
from proxy.settings import values
from proxy.settings.diagnostics import alternatives, check_with, parse_with, quoted
from proxy.settings.values import (
    Accepts,
    AnswerStep,
    Duration,
    ForwardedHeader,
    Frozen,
    IdentityPlace,
    RequestStep,
    SentHeader,
    SentValue,
    SettingsModel,
    UpstreamName,
    allowed_names,
    at_least_one,
    signing_secret,
)

Tool = Literal["memory_store", "memory_recall", "memory_forget"]
_SHORTHAND = "write a message such as 'user: Hello', or its fields: {role: user, content: Hello}"
_ROLES: Final = get_args(Role)
_DEFAULT_TIME: Final = datetime(2026, 1, 1, 12, tzinfo=UTC)


def _message_fields(value: object) -> dict[str, Any]:
    """Returns the fields of a message, written as ``role: content`` or as fields; some may be missing.

    Raises ValueError for another form, and for an unknown role.
    """
    message = value
    if isinstance(value, str):
        role, colon, content = value.partition(":")
        if not colon or not role.isalpha():
            raise ValueError(_SHORTHAND)
        message = {"role": role, "content": content.removeprefix(" ")}
    elif isinstance(value, dict) and len(value) == 1 and (role := next(iter(value))) in _ROLES:
        message = {"role": role, "content": value[role]}  # YAML reads it as a mapping without quotes
    if not isinstance(message, dict):
        raise ValueError(_SHORTHAND)  # noqa: TRY004 - pydantic collects only ValueErrors
    role_name = message.get("role")
    if isinstance(role_name, str) and role_name not in _ROLES:
        raise ValueError(f"unknown role{quoted(role_name)}{alternatives(role_name, _ROLES)}")
    return message


def _partial_message(value: object) -> object:
    message = _message_fields(value)
    if not message:
        raise ValueError(f"the message is empty; {_SHORTHAND}")
    return message


def _whole_message(value: object) -> object:
    message = _message_fields(value)
    if not isinstance(message.get("role"), str):
        raise ValueError(f"this message has no role; {_SHORTHAND}")  # noqa: TRY004
    return message


def _at_least_one(messages: tuple[object, ...]) -> tuple[object, ...]:
    if not messages:
        raise ValueError("write at least one message, such as 'user: Hello'")
    return messages


def _time(value: object) -> object:
    try:
        time = datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        time = None
    if time is None or time.tzinfo is None:
        raise ValueError("write a time with its zone, such as 2026-11-20T10:00:00Z")
    return time


def _request(value: object) -> object:
    if isinstance(value, dict) and "messages" in value:
        raise ValueError("the messages stand beside 'request', not in it")
    return value


def _expectation(value: object, info: ValidationInfo) -> object:
    form: Any = tuple[WholeMessage, ...] if isinstance(value, list) else ExpectedMessages
    return TypeAdapter(form).validate_python(value, context=info.context)


def _expected_answer(value: object, info: ValidationInfo) -> object:
    if isinstance(value, ExpectedAnswer | str):
        return value
    return TypeAdapter(ExpectedAnswer).validate_python(value, context=info.context)


def _pieces(value: object) -> object:
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list | tuple) or not all(isinstance(piece, str) for piece in value):
        raise ValueError("write the answer as text, or as a list of the pieces in which it comes")
    return tuple(value)


WholeMessage = Annotated[str | dict[str, Any], parse_with(_whole_message)]
PartialMessage = Annotated[str | dict[str, Any], parse_with(_partial_message)]
Pieces = Annotated[str | tuple[str, ...], parse_with(_pieces)]


class ExpectedMessages(SettingsModel):
    """Messages that the model must get, and messages that it must not get."""

    contains: tuple[PartialMessage, ...] = ()
    """Messages, or parts of them, that the model must get in this order; others may come between."""
    lacks: tuple[PartialMessage, ...] = ()
    """Messages, or parts of them, that the model must not get."""


class ExpectedAnswer(SettingsModel):
    """Words that the client must get, and words that it must not get."""

    contains: tuple[str, ...] = ()
    """Words that the client must get."""
    lacks: tuple[str, ...] = ()
    """Words that the client must not get."""


class PipelineTest(SettingsModel):
    """A test case: what a client sends, and what the model and the client must get."""

    name: Annotated[str, Field(min_length=1)]
    """The name of the test: what must hold, in a few words."""
    messages: Annotated[tuple[WholeMessage, ...], check_with(_at_least_one)] = Field(
        json_schema_extra={"minItems": 1}
    )
    """The messages that the client sends, each as ``user: Hello`` or as a message's fields."""
    headers: Mapping[str, str] = Field(default_factory=dict)
    """The headers of the client."""
    query: Mapping[str, str] = Field(default_factory=dict)
    """The parameters in the query string."""
    request: Annotated[Mapping[str, Any], parse_with(_request)] = Field(default_factory=dict)
    """Further fields of the request, beside ``messages``."""
    time: Annotated[AwareDatetime, parse_with(_time)] = _DEFAULT_TIME
    """The time of the request, with its zone; left out: always the same time."""
    expect: Annotated[ExpectedMessages | tuple[WholeMessage, ...] | None, parse_with(_expectation)] = None
    """The messages that the model gets: all as a list, or some with ``contains`` and ``lacks``."""
    parameters: Mapping[str, Any] = Field(default_factory=dict)
    """Other fields that the model gets, each with exactly this value; further fields may have any."""
    absent: tuple[str, ...] = ()
    """Fields, other than ``messages``, that the model must not get."""
    session: str | None = None
    """The session's id; ``null``: the request must have no session. Left out: any."""
    user: str | None = None
    """The user's id; ``null``: the request must name no user. Left out: any."""
    answer: Pieces = ()
    """The answer of the model, as text or as the pieces in which it is streamed."""
    expect_answer: Annotated[ExpectedAnswer | str | None, parse_with(_expected_answer)] = None
    """The text that the client gets: all of it, or some words with ``contains`` and ``lacks``."""

    @property
    def is_vacuous(self) -> bool:
        """Whether the test expects nothing, and so always passes."""
        expected = (self.expect, self.expect_answer)
        expects = any(each not in (None, ExpectedMessages(), ExpectedAnswer()) for each in expected)
        names = self.model_fields_set & {"session", "user"}
        return not (expects or names or self.parameters or self.absent)


class UpstreamSettings(SettingsModel):
    """A model to send requests to."""

    base_url: Annotated[
        str,
        check_with(values.check_base_url),
        Field(json_schema_extra={"pattern": "^practice:$|^[hH][tT][tT][pP][sS]?://"}),
    ]
    """The address up to and including ``/v1``; ``practice:`` is a built-in model without a network."""
    api_key: Annotated[SecretStr, check_with(values.check_token)] = SecretStr("")
    """The key that is sent as bearer token; empty: none."""
    model: str = ""
    """The model's name at this upstream; empty: the name in the request."""
    accepts: Accepts = "openai"
    """The provider whose fields the upstream takes; other fields are not sent."""
    allow: Annotated[tuple[str, ...], check_with(allowed_names)] = ()
    """Further fields to send, at the top level and in messages; for ``accepts: any`` alone."""
    connect: Duration = 2.0
    """How long opening a connection may take. One is opened before the first call."""
    first_token: Duration = 5.0
    """How long the model may take until its first token, in each attempt."""
    first_content: Duration | None = None
    """How long it may take until the first content; left out: no limit.

    Reasoning is no content. With a limit, it is held back until content comes.
    """
    total: Duration = 60.0
    """How long a whole answer may take, all attempts included.

    Without streaming, all upstreams of a pipeline share this time.
    """
    retries: Annotated[Whole, Field(ge=0, le=10)] = 1
    """How often a turn tries again after a failure before the first token."""
    max_connections: Annotated[Whole, Field(ge=1)] = 1000
    """The most requests under way at once."""
    headers: Frozen[SentHeader, SentValue] = Field(default_factory=lambda: MappingProxyType({}))
    """Headers that are sent with every request."""
    forward_headers: tuple[ForwardedHeader, ...] = ()
    """Names of headers of the client that are passed on."""
    forward_key: bool = False
    """Whether the client's bearer token is passed on in place of ``api_key``."""


class IdentitySettings(SettingsModel):
    """Where a request names its session and its user; the first place that has an id counts."""

    session: tuple[IdentityPlace, ...] | None = None
    """Places of the session's id; left out: the usual places of each voice platform."""
    user: tuple[IdentityPlace, ...] | None = None
    """Places of the user's id; left out: the usual places of each voice platform."""
    user_hmac: Annotated[SecretStr, check_with(signing_secret)] = SecretStr("")
    """A secret under which clients must sign each user's id.

    ``X-User-Hmac`` must then be the HMAC-SHA256 of the id, in hexadecimal. With ``user`` left out, the id
    is read from ``X-User-Id`` alone.
    """
    default_session: str = ""
    """The session of requests that name none; empty: they have no session."""


class PipelineSettings(SettingsModel):
    """What happens to a request on its way to the model, and to the answer on its way back."""

    upstreams: Annotated[tuple[UpstreamName, ...], check_with(at_least_one)] = Field(
        json_schema_extra={"minItems": 1}
    )
    """Names of upstreams; each is tried when those before it have failed."""
    model: str = ""
    """The model's name; empty: the upstream's, else the name in the request."""
    first_token: Duration | None = None
    """How long all upstreams together may take until the first token; left out: the sum of theirs."""
    hedge: Duration | None = None
    """How long to wait for the first token before the next upstream is asked as well; left out: never."""
    keep_alive: Duration | None = None
    """How long a stream may be silent before a comment is sent, which keeps it open; left out: never."""
    identity: IdentitySettings = IdentitySettings()
    """Where requests name session and user, instead of the usual places of each voice platform."""
    request: tuple[RequestStep, ...] = ()
    """The filters of requests, in the order in which they run."""
    failing: Literal["refuse", "skip"] = "refuse"
    """What happens when a request filter raises an error.

    ``refuse``: the turn fails. ``skip``: it continues without the filter, and a response header names it.
    """
    tools: tuple[Tool, ...] = ()
    """Memory tools that the model may call; the proxy runs them within the answer."""
    tool_rounds: Annotated[Whole, Field(ge=1, le=10)] = 4
    """How many rounds of tool calls an answer may have; each asks the model again."""
    answer: tuple[AnswerStep, ...] = ()
    """The filters of answers, in the order in which they run."""
    tests: tuple[PipelineTest, ...] = ()
    """Test cases, which ``turnkeeper test`` runs; a server ignores them."""
