"""What all parts of a configuration have in common."""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Final, Literal, TypeVar

import msgspec
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    InstanceOf,
    SecretStr,
    SerializeAsAny,
    ValidationInfo,
    WrapSerializer,
)

from filters import option_types
from filters.base import AnswerFilter, Filter, RequestFilter
from proxy.admission.gate import is_loopback_address
from proxy.admission.keys import Keys
from proxy.hostname import ADVICE, host_of, is_host_name
from proxy.memory.archive.archive import open_archive
from proxy.memory.stores import codec
from proxy.memory.stores.codec import codec_from_keys
from proxy.memory.stores.drivers import open_store
from proxy.settings.diagnostics import alternatives, is_name, quoted, shown_errors
from proxy.settings.filter_registry import FilterRegistry, build_step
from proxy.upstream.dial import Origin

PRACTICE = "practice:"
_CHAT_COMPLETIONS = "/chat/completions"
_ADDRESS_ADVICE: Final = (
    "write an address such as https://api.example.com/v1, or practice: for the practice model"
)
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_HEADER_VALUE = re.compile(r"[ -~\t]*")
_HOP_BY_HOP = {
    "connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection",
    "te", "trailer", "transfer-encoding", "upgrade",
}  # fmt: skip
# They tell of the one message that they came with; the next message has its own.
_OF_THE_MESSAGE = {
    "accept-encoding", "content-encoding", "content-length", "content-type", "expect", "host",
}  # fmt: skip
_NOT_FORWARDED = {
    "authorization": "'authorization' cannot be forwarded by name; use forward_key",
    "cookie": "'cookie' stays between a client and this server; take it out",
}
T = TypeVar("T")
Key = TypeVar("Key")
Value = TypeVar("Value")
Accepts = Literal["openai", "azure", "groq", "mistral", "gemini", "anthropic", "vllm", "ollama", "any"]
_SHORTEST_SECRET = 16
_IDENTITY_PLACE = re.compile(r"header:[A-Za-z0-9-]+|query:[\w.-]+|(?:body|message):[\w-]+(?:\.[\w-]+)*")
_PLACE_BEGINS = "^(header|query|body|message):"


class SettingsModel(BaseModel):
    """A part of the configuration: it never changes, and knows all its keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


def check_base_url(written: str) -> str:
    """The address without a slash at its end. Raises ValueError, which never shows the address itself."""
    if written == PRACTICE:
        return written
    if re.search(r"[^!-~]", written):
        raise ValueError("an address has no spaces, and no characters beyond ASCII")
    _check(written)
    return written.rstrip("/")


def _check(written: str) -> None:
    rest = written.partition("://")[2]
    host = host_of(written)
    if not host:
        raise ValueError(_ADDRESS_ADVICE)
    if not is_host_name(host):
        raise ValueError(ADVICE)
    if "@" in rest.partition("/")[0]:
        raise ValueError("an address has no user or password before its host; use api_key or headers")
    if "?" in rest or "#" in rest:
        raise ValueError("cut the address before its '?' or '#'")
    if rest.rstrip("/").endswith(_CHAT_COMPLETIONS):
        raise ValueError(f"cut {_CHAT_COMPLETIONS} from the end; it is added for every call")
    _try(written)


def _try(written: str) -> None:
    """What is let through here, whoever calls must be able to take."""
    try:
        Origin.of(written)
    except ValueError:
        raise ValueError(_ADDRESS_ADVICE) from None


def sent_header_name(name: str) -> str:
    """A header sent with every request, in lower case. Raises ValueError for one that cannot be set."""
    lower = name.lower()
    if not _HEADER_NAME.fullmatch(name):
        raise ValueError("write a header's name: letters, digits and '-'")
    if lower in _HOP_BY_HOP | _OF_THE_MESSAGE:
        raise ValueError(f"{lower!r} is set for each message by itself; take it out")
    return lower


def forwarded_header_name(name: str) -> str:
    """A client's header that goes on, in lower case. Raises ValueError for one that must not."""
    lower = sent_header_name(name)
    if lower in _NOT_FORWARDED:
        raise ValueError(_NOT_FORWARDED[lower])
    return lower


def sent_header_value(value: SecretStr) -> SecretStr:
    """A header's value. Raises ValueError, without the value, for what cannot stand in a header."""
    if not _HEADER_VALUE.fullmatch(value.get_secret_value()):
        raise ValueError("a header's value is one line of ASCII")
    return value


def check_token(value: SecretStr) -> SecretStr:
    """A key that goes into a header. Raises ValueError, without the key, for what cannot be one."""
    if re.search(r"[^!-~]", value.get_secret_value()):
        raise ValueError("a key has no spaces or line breaks, and no characters beyond ASCII")
    return value


class ValidationContext(msgspec.Struct, frozen=True):
    """What the check of one value must know of the rest of the file."""

    shelf: FilterRegistry = FilterRegistry()
    upstreams: tuple[str, ...] | None = None
    keyless: bool = False


def _context(info: ValidationInfo) -> ValidationContext:
    return info.context if isinstance(info.context, ValidationContext) else ValidationContext()


def _name(given: str) -> str:
    if not is_name(given):
        raise ValueError("a name has 1 to 64 letters, digits, '.', '_' or '-'")
    return given


def _identity_place(given: str) -> str:
    if not _IDENTITY_PLACE.fullmatch(given):
        raise ValueError(
            "write a place such as header:X-Session-Id, query:user_id, body:call.id or message:metadata.user"
        )
    return given


def parse_keys(given: object) -> object:
    """Who may call, from ``name:secret`` entries. Raises ValueError that shows no secret."""
    if isinstance(given, str):
        return Keys.parse(given)
    if isinstance(given, Keys):
        return given
    raise ValueError("write text in quotes: 'name:secret' or 'name:secret:chat', separated by commas")


def listening_host(given: str, info: ValidationInfo) -> str:
    """An address that may be listened on: without keys, one of this machine alone."""
    if not is_host_name(given):
        raise ValueError(ADVICE)
    if re.fullmatch(r"[^:]+:[0-9]+", given):
        raise ValueError("write the port under listen.port, and here the address alone")
    if _context(info).keyless and not is_loopback_address(given):
        raise ValueError(
            "without keys only this machine may call: set TURNKEEPER_KEYS (keys), or listen on 127.0.0.1"
        )
    return given


def _upstream(given: str, info: ValidationInfo) -> str:
    known = _context(info).upstreams
    if known is not None and given not in known:
        raise ValueError(f"no upstream named{quoted(given)}{alternatives(given, known)}")
    return given


def at_least_one(given: T) -> T:
    """A mapping of upstreams that is not empty."""
    if not given:
        raise ValueError("name at least one upstream here")
    return given


def store_address(given: SecretStr) -> SecretStr:
    """An address for which there is a driver; nothing is connected."""
    open_store(given.get_secret_value(), deadline=1.0, codec=codec.Plain())  # connects nothing
    return given


def archive_address(given: SecretStr) -> SecretStr:
    """An address at which an archive can be kept, or none; nothing is connected."""
    if given.get_secret_value():
        open_archive(given.get_secret_value(), codec=codec.Plain())
    return given


def _retention(given: object) -> object:
    """``forever``, ``off`` (which YAML reads as false where it is bare) or a duration."""
    if given is False or (isinstance(given, str) and given in {"forever", "off"}):
        return given or "off"
    try:
        option_types.seconds(given)
    except ValueError:
        raise ValueError("write forever, off, or a duration such as 90d") from None
    return given


def encryption_keys(given: tuple[SecretStr, ...]) -> tuple[SecretStr, ...]:
    """Keys that a codec can be made of."""
    codec_from_keys([key.get_secret_value() for key in given])
    return given


def signing_secret(given: SecretStr) -> SecretStr:
    """A secret that cannot be guessed from what it signs; empty for none."""
    if 0 < len(given.get_secret_value()) < _SHORTEST_SECRET:
        raise ValueError(
            f"a secret has {_SHORTEST_SECRET} characters at the least; make one with: openssl rand -hex 32"
        )
    return given


def allowed_names(given: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
    """Field names that go on beside the kind's own, where the kind is ``any``."""
    if given and info.data.get("accepts", "any") != "any":
        raise ValueError("field names are let through with 'accepts: any' alone; set that, or take them out")
    return given


def _request_step(given: object, info: ValidationInfo) -> object:
    return _step(given, RequestFilter, info)


def _answer_step(given: object, info: ValidationInfo) -> object:
    return _step(given, AnswerFilter, info)


def _step(given: object, kind: type[Filter], info: ValidationInfo) -> object:
    return given if isinstance(given, kind) else build_step(given, kind, _context(info).shelf)


Frozen = Annotated[
    Mapping[Key, Value],
    AfterValidator(MappingProxyType),
    WrapSerializer(lambda mapping, serialize: serialize(dict(mapping))),
]


Name = Annotated[str, AfterValidator(shown_errors(_name))]


UpstreamName = Annotated[str, AfterValidator(shown_errors(_upstream))]


Retention = Annotated[
    str,
    BeforeValidator(
        shown_errors(_retention),
        json_schema_input_type=Annotated[str, Field(pattern=f"^(forever|off)$|{option_types.DURATION}")]
        | Literal[False],
    ),
]


IdentityPlace = Annotated[
    str, AfterValidator(shown_errors(_identity_place)), Field(json_schema_extra={"pattern": _PLACE_BEGINS})
]


RequestStep = Annotated[
    SerializeAsAny[RequestFilter],
    BeforeValidator(shown_errors(_request_step), json_schema_input_type=RequestFilter),
]


AnswerStep = Annotated[
    SerializeAsAny[AnswerFilter],
    BeforeValidator(shown_errors(_answer_step), json_schema_input_type=AnswerFilter),
]


Duration = Annotated[
    float,
    BeforeValidator(
        shown_errors(option_types.seconds),
        json_schema_input_type=Annotated[str, Field(pattern=option_types.DURATION)],
    ),
]
"""Written with a unit; seconds once it is loaded."""
Size = Annotated[
    int,
    BeforeValidator(
        shown_errors(option_types.size),
        json_schema_input_type=Annotated[str, Field(pattern=option_types.SIZE)],
    ),
]
"""Written with a unit; bytes once it is loaded."""
SentHeader = Annotated[str, AfterValidator(shown_errors(sent_header_name))]
SentValue = Annotated[SecretStr, AfterValidator(shown_errors(sent_header_value))]
ForwardedHeader = Annotated[str, AfterValidator(shown_errors(forwarded_header_name))]
CallerKeys = Annotated[
    InstanceOf[Keys], BeforeValidator(shown_errors(parse_keys), json_schema_input_type=str)
]
