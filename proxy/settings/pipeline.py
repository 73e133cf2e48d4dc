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
    named = message.get("role")
    if isinstance(named, str) and named not in _ROLES:
        raise ValueError(f"no model knows the role{quoted(named)}{alternatives(named, _ROLES)}")
    return message


def _partial_message(value: object) -> object:
    message = _message_fields(value)
    if not message:
        raise ValueError(f"nothing is named here; {_SHORTHAND}")
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
    """Some of the messages that the model must get, and some that it must not."""

    contains: tuple[PartialMessage, ...] = ()
    """Messages, or parts of them, that must come in this order; others may stand between them."""
    lacks: tuple[PartialMessage, ...] = ()
    """Messages, or parts of them, of which none may come."""


class ExpectedAnswer(SettingsModel):
    """Some of the words that the client must get, and some that it must not."""

    contains: tuple[str, ...] = ()
    """Words that must come."""
    lacks: tuple[str, ...] = ()
    """Words that may not come."""


class PipelineTest(SettingsModel):
    """What a client sends, and what must become of it on the way."""

    name: Annotated[str, Field(min_length=1)]
    """What must hold, in a few words."""
    messages: Annotated[tuple[WholeMessage, ...], check_with(_at_least_one)] = Field(
        json_schema_extra={"minItems": 1}
    )
    """What the client sends: ``user: Hello``, or a message's fields."""
    headers: Mapping[str, str] = Field(default_factory=dict)
    """The client's headers."""
    query: Mapping[str, str] = Field(default_factory=dict)
    """The parameters behind the path's ``?``."""
    request: Annotated[Mapping[str, Any], parse_with(_request)] = Field(default_factory=dict)
    """Further fields of the request, beside ``messages``."""
    time: Annotated[AwareDatetime, parse_with(_time)] = _DEFAULT_TIME
    """When the request comes, with its zone; always the same where nothing is written."""
    expect: Annotated[ExpectedMessages | tuple[WholeMessage, ...] | None, parse_with(_expectation)] = None
    """The messages that the model gets: all of them as a list, or some with ``contains`` and ``lacks``."""
    parameters: Mapping[str, Any] = Field(default_factory=dict)
    """Further fields that the model gets, each exactly so; fields that are not named may be anything."""
    absent: tuple[str, ...] = ()
    """Fields beside ``messages`` that the model must not get."""
    session: str | None = None
    """Whose session it is; ``null`` for nobody's. Left out, it may be any."""
    user: str | None = None
    """Who speaks; ``null`` for nobody known. Left out, it may be anyone."""
    answer: Pieces = ()
    """What the model is made to say, as text or in the pieces in which it comes."""
    expect_answer: Annotated[ExpectedAnswer | str | None, parse_with(_expected_answer)] = None
    """The words that the client gets: all of them as text, or some with ``contains`` and ``lacks``."""

    @property
    def is_vacuous(self) -> bool:
        """Whether the test expects nothing, and so always passes."""
        expected = (self.expect, self.expect_answer)
        expects = any(each not in (None, ExpectedMessages(), ExpectedAnswer()) for each in expected)
        names = self.model_fields_set & {"session", "user"}
        return not (expects or names or self.parameters or self.absent)


class Upstream(SettingsModel):
    """A model that requests are sent to."""

    base_url: Annotated[
        str,
        check_with(values.check_base_url),
        Field(json_schema_extra={"pattern": "^practice:$|^[hH][tT][tT][pP][sS]?://"}),
    ]
    """Up to and including ``/v1``; ``practice:`` is the practice model, which needs no network."""
    api_key: Annotated[SecretStr, check_with(values.check_token)] = SecretStr("")
    """Sent as the bearer key; empty sends none."""
    model: str = ""
    """The model's name at this upstream; empty takes the request's."""
    accepts: Accepts = "openai"
    """The provider whose fields the upstream accepts; nothing else reaches it."""
    allow: Annotated[tuple[str, ...], check_with(allowed_names)] = ()
    """Further field names, at the top level and in messages, that go on with ``accepts: any``."""
    connect: Duration = 2.0
    """How long a connection may take to stand. One stands before the first call."""
    first_token: Duration = 5.0
    """How long the model may take until it says anything, in each attempt."""
    first_content: Duration | None = None
    """How long it may take to say more than reasoning, which is held back until then; off unless set."""
    total: Duration = 60.0
    """How long a whole answer may take, with all tries; upstreams share it where nothing is streamed."""
    retries: Annotated[Whole, Field(ge=0, le=10)] = 1
    """How often a turn tries again when the upstream fails before it has said anything."""
    max_connections: Annotated[Whole, Field(ge=1)] = 1000
    """How many requests may be under way at once."""
    headers: Frozen[SentHeader, SentValue] = Field(default_factory=lambda: MappingProxyType({}))
    """Sent with every request to this upstream."""
    forward_headers: tuple[ForwardedHeader, ...] = ()
    """The client's headers that go on."""
    forward_key: bool = False
    """Whether the client's own bearer key goes on, in place of ``api_key``."""


class Identity(SettingsModel):
    """Where a request names its session and user; the first place with an id counts."""

    session: tuple[IdentityPlace, ...] | None = None
    """Where the session's name stands; left out, the usual places of each dialect."""
    user: tuple[IdentityPlace, ...] | None = None
    """Where the user's name stands; left out, the usual places of each dialect."""
    user_hmac: Annotated[SecretStr, check_with(signing_secret)] = SecretStr("")
    """Demands ``X-User-Hmac`` with each user's id: its HMAC-SHA256 in hexadecimal under this secret.

    ``user`` left out, the id is then read from ``X-User-Id`` alone.
    """
    default_session: str = ""
    """The session of requests that name none; empty means no session."""


class Pipeline(SettingsModel):
    """What happens to a request on its way to the model."""

    upstreams: Annotated[tuple[UpstreamName, ...], check_with(at_least_one)] = Field(
        json_schema_extra={"minItems": 1}
    )
    """Names of upstreams; each further one is tried when those before it fail."""
    model: str = ""
    """The model's name; empty takes the upstream's, else the request's."""
    first_token: Duration | None = None
    """How long all upstreams together may take to say anything; left out, the sum of what each may take."""
    hedge: Duration | None = None
    """When the first delta is so late, the next upstream is tried as well; off unless set."""
    keep_alive: Duration | None = None
    """How long a stream may be silent before a comment is sent; off unless set."""
    identity: Identity = Identity()
    """Where session and user are named, in place of the usual places of each dialect."""
    request: tuple[RequestStep, ...] = ()
    """The filters between the client's request and the model, in the order in which they run."""
    failing: Literal["refuse", "skip"] = "refuse"
    """A request filter that raises an error: the turn is refused, or goes on without it and says so."""
    tools: tuple[Tool, ...] = ()
    """Memory tools that the model may call; the proxy carries them out within the answer."""
    tool_rounds: Annotated[Whole, Field(ge=1, le=10)] = 4
    """How often the model is called again in one answer, after its tool calls have been carried out."""
    answer: tuple[AnswerStep, ...] = ()
    """The filters between the model's answer and the client, in the order in which they run."""
    tests: tuple[PipelineTest, ...] = ()
    """What must become of some requests; ``turnkeeper test`` tries it, and serving does not look at it."""
