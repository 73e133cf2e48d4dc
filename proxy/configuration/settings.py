"""What a configuration says, as one frozen value."""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Literal, TypeVar

import msgspec
from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    InstanceOf,
    SecretStr,
    SerializeAsAny,
    ValidationInfo,
    WrapSerializer,
)

from filters import quantity
from filters.base import AnswerFilter, Filter, RequestFilter
from proxy.configuration import base_url, header
from proxy.configuration.advice import advising
from proxy.configuration.case import Case
from proxy.configuration.part import Part
from proxy.configuration.shelf import Shelf
from proxy.configuration.step import step
from proxy.configuration.word import alternatives, is_word, quoted
from proxy.keys import Keys
from proxy.loopback import is_loopback_address
from proxy.memory import codec
from proxy.memory.open import open_store
from proxy.memory.sealing import codec_of

Given = TypeVar("Given")
Key = TypeVar("Key")
Value = TypeVar("Value")
Accepts = Literal["openai", "azure", "groq", "mistral", "gemini", "anthropic", "vllm", "any"]


_PLACE = re.compile(r"header:[A-Za-z0-9-]+|query:[\w.-]+|(?:body|message):[\w-]+(?:\.[\w-]+)*")
_PLACE_BEGINS = "^(header|query|body|message):"


class Surroundings(msgspec.Struct, frozen=True):
    """What the check of one value must know of the rest of the file."""

    shelf: Shelf = Shelf()
    upstreams: tuple[str, ...] | None = None
    keyless: bool = False


def _surroundings(info: ValidationInfo) -> Surroundings:
    return info.context if isinstance(info.context, Surroundings) else Surroundings()


def _number(given: object) -> object:
    if given is True or given is False:
        raise ValueError("write a whole number")
    return given


def _name(given: str) -> str:
    if not is_word(given):
        raise ValueError("a name has 1 to 64 letters, digits, '.', '_' or '-'")
    return given


def _place(given: str) -> str:
    if not _PLACE.fullmatch(given):
        raise ValueError(
            "write a place such as header:X-Session-Id, query:user_id, body:call.id or message:metadata.user"
        )
    return given


def _keys(given: object) -> object:
    if isinstance(given, str):
        return Keys.parse(given)
    if isinstance(given, Keys):
        return given
    raise ValueError("write text in quotes: 'name:secret' or 'name:secret:chat', separated by commas")


def _host(given: str, info: ValidationInfo) -> str:
    if _surroundings(info).keyless and not is_loopback_address(given):
        raise ValueError(
            "without keys only this machine may call: set TURNKEEPER_KEYS (keys), or listen on 127.0.0.1"
        )
    return given


def _upstream(given: str, info: ValidationInfo) -> str:
    known = _surroundings(info).upstreams
    if known is not None and given not in known:
        raise ValueError(f"no upstream named{quoted(given)}{alternatives(given, known)}")
    return given


def _some(given: Given) -> Given:
    if not given:
        raise ValueError("name at least one upstream here")
    return given


def _store(given: SecretStr) -> SecretStr:
    open_store(given.get_secret_value(), deadline=1.0, codec=codec.Identity())  # connects nothing
    return given


def _encryption(given: tuple[SecretStr, ...]) -> tuple[SecretStr, ...]:
    codec_of([key.get_secret_value() for key in given])
    return given


def _allow(given: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
    if given and info.data.get("accepts", "any") != "any":
        raise ValueError("field names are let through with 'accepts: any' alone; set that, or take them out")
    return given


def _request_step(given: object, info: ValidationInfo) -> object:
    return _step(given, RequestFilter, info)


def _answer_step(given: object, info: ValidationInfo) -> object:
    return _step(given, AnswerFilter, info)


def _step(given: object, kind: type[Filter], info: ValidationInfo) -> object:
    return given if isinstance(given, kind) else step(given, kind, _surroundings(info).shelf)


Frozen = Annotated[
    Mapping[Key, Value],
    AfterValidator(MappingProxyType),
    WrapSerializer(lambda mapping, serialize: serialize(dict(mapping))),
]
Name = Annotated[str, AfterValidator(advising(_name))]
UpstreamName = Annotated[str, AfterValidator(advising(_upstream))]
Whole = Annotated[int, BeforeValidator(advising(_number), json_schema_input_type=int)]
Duration = Annotated[
    float,
    BeforeValidator(
        advising(quantity.seconds), json_schema_input_type=Annotated[str, Field(pattern=quantity.DURATION)]
    ),
]
Size = Annotated[
    int,
    BeforeValidator(
        advising(quantity.size), json_schema_input_type=Annotated[str, Field(pattern=quantity.SIZE)]
    ),
]
Place = Annotated[str, AfterValidator(advising(_place)), Field(json_schema_extra={"pattern": _PLACE_BEGINS})]
SentHeader = Annotated[str, AfterValidator(advising(header.sent_name))]
SentValue = Annotated[SecretStr, AfterValidator(advising(header.sent_value))]
ForwardedHeader = Annotated[str, AfterValidator(advising(header.forwarded_name))]
RequestStep = Annotated[
    SerializeAsAny[RequestFilter],
    BeforeValidator(advising(_request_step), json_schema_input_type=RequestFilter),
]
AnswerStep = Annotated[
    SerializeAsAny[AnswerFilter], BeforeValidator(advising(_answer_step), json_schema_input_type=AnswerFilter)
]


class Listen(Part):
    """Where callers are awaited."""

    host: Annotated[str, Field(min_length=1), AfterValidator(advising(_host))] = "127.0.0.1"
    """An address of this machine; any but a loopback address needs keys."""
    port: Annotated[Whole, Field(ge=0, le=65535)] = 8080
    """A port; 0 takes one that is free."""
    max_body: Size = 16_000_000
    """The largest request that is read; in bytes once loaded."""


class Upstream(Part):
    """A model that requests are sent to."""

    base_url: Annotated[
        str,
        AfterValidator(advising(base_url.base_url)),
        Field(json_schema_extra={"pattern": "^practice:$|^[hH][tT][tT][pP][sS]?://"}),
    ]
    """Up to and including ``/v1``; ``practice:`` is the practice model, which needs no network."""
    api_key: Annotated[SecretStr, AfterValidator(advising(header.token))] = SecretStr("")
    """Sent as the bearer key; empty sends none."""
    model: str = ""
    """The model's name at this upstream; empty takes the request's."""
    accepts: Accepts = "openai"
    """Whose fields the upstream understands; nothing else reaches it."""
    allow: Annotated[tuple[str, ...], AfterValidator(advising(_allow))] = ()
    """Further field names, at the top level and in messages, that go on with ``accepts: any``."""
    connect: Duration = 2.0
    """How long a connection may take to stand; in seconds once loaded."""
    first_token: Duration = 5.0
    """How long the model may take to say anything; in seconds once loaded."""
    total: Duration = 60.0
    """How long a whole answer may take; in seconds once loaded."""
    max_connections: Annotated[Whole, Field(ge=1)] = 1000
    """How many requests may be under way at once."""
    headers: Frozen[SentHeader, SentValue] = Field(default_factory=lambda: MappingProxyType({}))
    """Sent with every request to this upstream."""
    forward_headers: tuple[ForwardedHeader, ...] = ()
    """The client's headers that go on, in lower case once loaded."""
    forward_key: bool = False
    """Whether the client's own bearer key goes on, in place of ``api_key``."""


class Identity(Part):
    """Where a pipeline finds out whose turn it is; the first place that says something counts."""

    session: tuple[Place, ...] | None = None
    """Where the session's name stands; left out, the usual places of each dialect."""
    user: tuple[Place, ...] | None = None
    """Where the user's name stands; left out, the usual places of each dialect."""
    default_session: str = ""
    """The session of a caller who names none; empty means no session."""


class Pipeline(Part):
    """What happens to a request on its way to the model."""

    upstreams: Annotated[tuple[UpstreamName, ...], AfterValidator(advising(_some))] = Field(
        json_schema_extra={"minItems": 1}
    )
    """Names of upstreams; each further one is asked when those before it fail."""
    model: str = ""
    """The model's name; empty takes the upstream's, else the request's."""
    identity: Identity = Identity()
    """Where session and user are named, in place of the usual places of each dialect."""
    request: tuple[RequestStep, ...] = ()
    """The filters between the client's request and the model, in the order in which they run."""
    answer: tuple[AnswerStep, ...] = ()
    """The filters between the model's answer and the client, in the order in which they run."""
    tests: tuple[Case, ...] = ()
    """What must become of some requests; ``turnkeeper test`` tries it, and serving does not look at it."""


class Window(Part):
    """How much of a session is held ready, and for how long."""

    max_messages: Annotated[Whole, Field(ge=2, le=1000)] = 60
    """A session with more messages than this is cut down, by whole turns."""
    keep_messages: Annotated[Whole, Field(ge=1, le=1000)] = 20
    """How many messages are left then, at the least."""
    ttl: Duration = 1800.0
    """How long a session is kept after its last turn; in seconds once loaded."""


class Memory(Part):
    """What is remembered of conversations; left out, nothing is."""

    sessions: Annotated[SecretStr, AfterValidator(advising(_store))]
    """Where sessions are kept: ``sqlite:PATH``, ``postgresql://…``, ``redis://…``, or ``memory:``."""
    encryption: Annotated[tuple[SecretStr, ...], AfterValidator(advising(_encryption))] = ()
    """Keys of 32 bytes in URL-safe base64: the first encrypts, all decrypt; empty ones do not count."""
    deadline: Duration = 0.05
    """What a slow or dead memory may cost a call; in seconds once loaded."""
    window: Window = Window()
    """How much of a session is held ready."""


class Settings(Part):
    """All that a configuration says."""

    listen: Listen = Listen()
    """Where callers are awaited."""
    keys: Annotated[InstanceOf[Keys], BeforeValidator(advising(_keys), json_schema_input_type=str)] = Keys()
    """Who may call: ``name:secret`` or ``name:secret:chat``, by commas; empty admits this machine alone."""
    filters: tuple[str, ...] = ()
    """Python files with filters of your own, from this file's folder on; each is named as its file."""
    memory: Memory | None = None
    """What is remembered of conversations; left out, nothing is."""
    upstreams: Annotated[Frozen[Name, Upstream], AfterValidator(advising(_some))] = Field(
        json_schema_extra={"minProperties": 1}
    )
    """The models that there are, by names of your choice."""
    pipelines: Frozen[Name, Pipeline] = Field(json_schema_extra={"required": ["default"]})
    """What happens to a request; ``default`` is asked where a path names no other."""
