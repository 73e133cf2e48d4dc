"""The values that settings consist of: how each is written, and the error for one that is wrong."""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeVar

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
from filters.inject_episodes import InjectEpisodes
from proxy.admission.gate import Keys, is_loopback_address
from proxy.hostname import ADVICE, is_host_name
from proxy.memory.archive.archive import open_archive
from proxy.memory.stores import codec
from proxy.memory.stores.codec import codec_from_keys
from proxy.memory.stores.drivers import open_driver
from proxy.settings.diagnostics import NO_UPSTREAM, alternatives, check_with, is_name, parse_with, quoted
from proxy.settings.filter_registry import FilterRegistry, build_step
from proxy.turn.identity import IdPlace
from proxy.upstream.dial import Origin
from proxy.upstream.providers import PROVIDERS

T = TypeVar("T")
Key = TypeVar("Key")
Value = TypeVar("Value")

PRACTICE = "practice:"


class SettingsModel(BaseModel):
    """A section of the configuration: frozen, and without unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class ValidationContext(msgspec.Struct, frozen=True):
    """Data from the rest of the file that the checks of single values need.

    ``upstreams`` is ``None`` if unknown. ``keyless`` is whether the file certainly has no keys.
    """

    registry: FilterRegistry = FilterRegistry()
    upstreams: tuple[str, ...] | None = None
    keyless: bool = False


def _context(info: ValidationInfo) -> ValidationContext:
    return info.context if isinstance(info.context, ValidationContext) else ValidationContext()


def at_least_one(upstreams: T) -> T:
    """Returns the upstreams; raises ValueError if there are none."""
    if not upstreams:
        raise ValueError("name at least one upstream here")
    return upstreams


# --- names


def check_name(text: str) -> str:
    """Returns a name of the user's choice; raises ValueError for a wrong form."""
    if not is_name(text):
        raise ValueError("a name has 1 to 64 letters, digits, '.', '_' or '-'")
    return text


def known_upstream(name: str, info: ValidationInfo) -> str:
    """Returns the name of an upstream; raises ValueError if the file has no upstream of that name."""
    upstreams = _context(info).upstreams
    if upstreams is not None and name not in upstreams:
        raise ValueError(f"{NO_UPSTREAM}{quoted(name)}{alternatives(name, upstreams)}")
    return name


Frozen = Annotated[
    Mapping[Key, Value],
    AfterValidator(MappingProxyType),
    WrapSerializer(lambda mapping, serialize: serialize(dict(mapping))),
]
Name = Annotated[str, check_with(check_name)]
UpstreamName = Annotated[str, check_with(known_upstream)]


# --- quantities


def retention(value: object) -> object:
    """Returns ``forever``, ``off`` (which YAML reads as false) or a duration; raises ValueError otherwise."""
    if value is False or (isinstance(value, str) and value in {"forever", "off"}):
        return value or "off"
    try:
        option_types.seconds(value)
    except ValueError:
        raise ValueError("write forever, off, or a duration such as 90d") from None
    return value


def _text(pattern: str) -> Any:
    return Annotated[str, Field(pattern=pattern)]


Duration = Annotated[float, parse_with(option_types.seconds, written=_text(option_types.DURATION))]
"""A duration in seconds, which is written with a unit."""
Size = Annotated[int, parse_with(option_types.size, written=_text(option_types.SIZE))]
"""A size in bytes, which is written with a unit."""
_FOREVER: Final = f"^(forever|off)$|{option_types.DURATION}"
Retention = Annotated[str, parse_with(retention, written=_text(_FOREVER) | Literal[False])]


# --- callers

_IDENTITY_PLACE_BEGINS = "^(header|query|body|message):"
_SHORTEST_SECRET: Final = 16


def listening_host(host: str, info: ValidationInfo) -> str:
    """Returns an address to listen on; raises ValueError for a wrong one.

    Without keys, that is any but a loopback address.
    """
    if not is_host_name(host):
        raise ValueError(ADVICE)
    if re.fullmatch(r"[^:]+:[0-9]+", host):
        raise ValueError("write the port under listen.port, and here the address alone")
    if _context(info).keyless and not is_loopback_address(host):
        raise ValueError(
            "without keys only this machine may call: set TURNKEEPER_KEYS (keys), or listen on 127.0.0.1"
        )
    return host


def parse_keys(value: object) -> object:
    """Parses the callers' keys in ``name:secret`` entries; raises ValueError, which never shows a secret."""
    if isinstance(value, str):
        return Keys.parse(value)
    raise ValueError("write text in quotes: 'name:secret' or 'name:secret:chat', separated by commas")


def signing_secret(secret: SecretStr) -> SecretStr:
    """Returns a secret; raises ValueError if it is short enough to be guessed from its signatures."""
    if 0 < len(secret.get_secret_value()) < _SHORTEST_SECRET:
        raise ValueError(
            f"a secret must have at least {_SHORTEST_SECRET} characters; make one with: openssl rand -hex 32"
        )
    return secret


def identity_place(text: str) -> str:
    """Returns a place of an id in a request; raises ValueError for a wrong one."""
    IdPlace.parse(text)
    return text


CallerKeys = Annotated[InstanceOf[Keys], parse_with(parse_keys, written=str)]
IdentityPlace = Annotated[
    str, check_with(identity_place), Field(json_schema_extra={"pattern": _IDENTITY_PLACE_BEGINS})
]


# --- memory


def store_address(url: SecretStr) -> SecretStr:
    """Returns a store's address; raises ValueError if no driver takes it. Opens no connection."""
    open_driver(url.get_secret_value(), deadline=1.0)
    return url


def archive_address(url: SecretStr) -> SecretStr:
    """Returns an archive's address, or an empty one; raises ValueError otherwise. Opens no connection."""
    if url.get_secret_value():
        open_archive(url.get_secret_value(), codec=codec.Plain())
    return url


def encryption_keys(keys: tuple[SecretStr, ...]) -> tuple[SecretStr, ...]:
    """Returns encryption keys; raises ValueError if one does not fit the codec."""
    codec_from_keys([key.get_secret_value() for key in keys])
    return keys


# --- steps of a pipeline


def _step(kind: type[Filter]) -> BeforeValidator:
    def build(value: object, info: ValidationInfo) -> object:
        return value if isinstance(value, kind) else build_step(value, kind, _context(info).registry)

    return parse_with(build, written=kind)


def _agent_place(step: RequestFilter) -> RequestFilter:
    if isinstance(step, InjectEpisodes):
        IdPlace.parse(step.place)
    return step


RequestStep = Annotated[SerializeAsAny[RequestFilter], _step(RequestFilter), check_with(_agent_place)]
AnswerStep = Annotated[SerializeAsAny[AnswerFilter], _step(AnswerFilter)]


# --- upstreams

_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_HEADER_VALUE = re.compile(r"[ -~\t]*")
_HOP_BY_HOP = {
    "connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection",
    "te", "trailer", "transfer-encoding", "upgrade",
}  # fmt: skip
# These headers describe a single message.
_OF_THE_MESSAGE = {
    "accept-encoding", "content-encoding", "content-length", "content-type", "expect", "host",
}  # fmt: skip
_NOT_FORWARDED = {
    "authorization": "'authorization' cannot be forwarded by name; use forward_key",
    "cookie": "'cookie' stays between a client and this server; take it out",
}


def check_base_url(url: str) -> str:
    """Returns an upstream's address without a slash at its end; raises ValueError, which never shows it."""
    if url == PRACTICE:
        return url
    Origin.of(url)
    return url.rstrip("/")


def check_token(key: SecretStr) -> SecretStr:
    """Returns a key that can be sent in a header; raises ValueError, which never shows it."""
    if re.search(r"[^!-~]", key.get_secret_value()):
        raise ValueError("a key must not contain spaces, line breaks, or characters beyond ASCII")
    return key


def allowed_names(names: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
    """Returns further field names to be sent; raises ValueError for any without ``accepts: any``."""
    if names and info.data.get("accepts", "any") != "any":
        raise ValueError("field names work only with 'accepts: any'; set that, or take them out")
    return names


def sent_header_name(name: str) -> str:
    """Returns the name of a header for every request, in lower case; raises ValueError for a reserved one."""
    lower = name.lower()
    if not _HEADER_NAME.fullmatch(name):
        raise ValueError("write a header's name: letters, digits and '-'")
    if lower in _HOP_BY_HOP | _OF_THE_MESSAGE:
        raise ValueError(f"{lower!r} is set automatically; take it out")
    return lower


def forwarded_header_name(name: str) -> str:
    """Returns the name of a client's header to forward, in lower case.

    Raises ValueError for one that must not be forwarded.
    """
    lower = sent_header_name(name)
    if lower in _NOT_FORWARDED:
        raise ValueError(_NOT_FORWARDED[lower])
    return lower


def sent_header_value(value: SecretStr) -> SecretStr:
    """Returns the value of a header; raises ValueError, which never shows it."""
    if not _HEADER_VALUE.fullmatch(value.get_secret_value()):
        raise ValueError("a header's value must be one line of ASCII")
    return value


if TYPE_CHECKING:
    Accepts = str
else:
    Accepts = Literal[tuple(PROVIDERS)]
SentHeader = Annotated[str, check_with(sent_header_name)]
SentValue = Annotated[SecretStr, check_with(sent_header_value)]
ForwardedHeader = Annotated[str, check_with(forwarded_header_name)]
