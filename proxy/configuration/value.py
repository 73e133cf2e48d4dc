"""The values that settings are made of: how each is written, and what is said of one that is wrong."""

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
from proxy.admission.keys import Keys
from proxy.admission.loopback import is_loopback_address
from proxy.configuration import header
from proxy.configuration.advice import advising
from proxy.configuration.shelf import Shelf
from proxy.configuration.step import step
from proxy.configuration.word import alternatives, is_word, quoted
from proxy.hostname import ADVICE, is_host_name
from proxy.memory import codec
from proxy.memory.archive.open import open_archive
from proxy.memory.open import open_store
from proxy.memory.sealing import codec_of

Given = TypeVar("Given")
Key = TypeVar("Key")
Value = TypeVar("Value")
Accepts = Literal["openai", "azure", "groq", "mistral", "gemini", "anthropic", "vllm", "ollama", "any"]


_SHORTEST_SECRET = 16
_PLACE = re.compile(r"header:[A-Za-z0-9-]+|query:[\w.-]+|(?:body|message):[\w-]+(?:\.[\w-]+)*")
_PLACE_BEGINS = "^(header|query|body|message):"


class Surroundings(msgspec.Struct, frozen=True):
    """What the check of one value must know of the rest of the file."""

    shelf: Shelf = Shelf()
    upstreams: tuple[str, ...] | None = None
    keyless: bool = False


def _surroundings(info: ValidationInfo) -> Surroundings:
    return info.context if isinstance(info.context, Surroundings) else Surroundings()


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


def known_keys(given: object) -> object:
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


def at_least_one(given: Given) -> Given:
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
        quantity.seconds(given)
    except ValueError:
        raise ValueError("write forever, off, or a duration such as 90d") from None
    return given


def encryption_keys(given: tuple[SecretStr, ...]) -> tuple[SecretStr, ...]:
    """Keys that a codec can be made of."""
    codec_of([key.get_secret_value() for key in given])
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
    return given if isinstance(given, kind) else step(given, kind, _surroundings(info).shelf)


Frozen = Annotated[
    Mapping[Key, Value],
    AfterValidator(MappingProxyType),
    WrapSerializer(lambda mapping, serialize: serialize(dict(mapping))),
]
Name = Annotated[str, AfterValidator(advising(_name))]
UpstreamName = Annotated[str, AfterValidator(advising(_upstream))]
Duration = Annotated[
    float,
    BeforeValidator(
        advising(quantity.seconds), json_schema_input_type=Annotated[str, Field(pattern=quantity.DURATION)]
    ),
]
"""Written with a unit; seconds once it is loaded."""
Retention = Annotated[
    str,
    BeforeValidator(
        advising(_retention),
        json_schema_input_type=Annotated[str, Field(pattern=f"^(forever|off)$|{quantity.DURATION}")]
        | Literal[False],
    ),
]
Size = Annotated[
    int,
    BeforeValidator(
        advising(quantity.size), json_schema_input_type=Annotated[str, Field(pattern=quantity.SIZE)]
    ),
]
"""Written with a unit; bytes once it is loaded."""
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
KnownKeys = Annotated[InstanceOf[Keys], BeforeValidator(advising(known_keys), json_schema_input_type=str)]
