"""A case beside a pipeline: what a client sends, and what must become of it."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Final, get_args

from pydantic import AfterValidator, AwareDatetime, BeforeValidator, Field, TypeAdapter, ValidationInfo

from filters.message import Role
from proxy.settings.diagnostics import alternatives, quoted, shown_errors
from proxy.settings.values import SettingsModel

_SHORTHAND = "write a message such as 'user: Hello', or its fields: {role: user, content: Hello}"
_ROLES: Final = get_args(Role)
_DEFAULT_TIME: Final = datetime(2026, 1, 1, 12, tzinfo=UTC)


def _message_fields(given: object) -> object:
    if isinstance(given, str):
        role, colon, words = given.partition(":")
        if not colon or not role.isalpha():
            raise ValueError(_SHORTHAND)
        return {"role": _check_role(role), "content": words.removeprefix(" ")}
    if not isinstance(given, dict):
        raise ValueError(_SHORTHAND)  # noqa: TRY004 - pydantic collects ValueErrors alone
    if isinstance(given.get("role"), str):
        _check_role(given["role"])
    return given


def _check_role(role: str) -> str:
    if role not in _ROLES:
        raise ValueError(f"no model knows the role{quoted(role)}{alternatives(role, _ROLES)}")
    return role


def _with_role(given: object) -> object:
    message = _message_fields(given)
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise ValueError(f"this message has no role; {_SHORTHAND}")  # noqa: TRY004
    return message


def _partial(given: object) -> object:
    message = _message_fields(given)
    if not message:
        raise ValueError(f"nothing is named here; {_SHORTHAND}")
    return message


def _not_empty(given: tuple[object, ...]) -> tuple[object, ...]:
    if not given:
        raise ValueError("write at least one message, such as 'user: Hello'")
    return given


def _as_time(given: object) -> object:
    if isinstance(given, datetime):
        return given
    try:
        time = datetime.fromisoformat(given) if isinstance(given, str) else None
    except ValueError:
        time = None
    if time is None or time.tzinfo is None:
        raise ValueError("write a time with its zone, such as 2026-11-20T10:00:00Z")
    return time


def _without_messages(given: object) -> object:
    if isinstance(given, dict) and "messages" in given:
        raise ValueError("the messages stand beside 'request', not in it")
    return given


def _as_expected_messages(given: object, info: ValidationInfo) -> object:
    if isinstance(given, ExpectedMessages | tuple):
        return given
    form: Any = tuple[WholeMessage, ...] if isinstance(given, list) else ExpectedMessages
    return TypeAdapter(form).validate_python(given, context=info.context)


def _as_expected_answer(given: object, info: ValidationInfo) -> object:
    if isinstance(given, ExpectedAnswer | str):
        return given
    return TypeAdapter(ExpectedAnswer).validate_python(given, context=info.context)


def _as_pieces(given: object) -> object:
    if isinstance(given, str):
        return (given,)
    if not isinstance(given, list | tuple) or not all(isinstance(piece, str) for piece in given):
        raise ValueError("write the answer as text, or as a list of the pieces in which it comes")
    return tuple(given)


WholeMessage = Annotated[str | dict[str, Any], BeforeValidator(shown_errors(_with_role))]


PartialMessage = Annotated[str | dict[str, Any], BeforeValidator(shown_errors(_partial))]


Pieces = Annotated[str | tuple[str, ...], BeforeValidator(shown_errors(_as_pieces))]


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
    messages: Annotated[tuple[WholeMessage, ...], AfterValidator(shown_errors(_not_empty))] = Field(
        json_schema_extra={"minItems": 1}
    )
    """What the client sends: ``user: Hello``, or a message's fields."""
    headers: Mapping[str, str] = Field(default_factory=dict)
    """The client's headers."""
    query: Mapping[str, str] = Field(default_factory=dict)
    """The parameters behind the path's ``?``."""
    request: Annotated[Mapping[str, Any], BeforeValidator(shown_errors(_without_messages))] = Field(
        default_factory=dict
    )
    """Further fields of the request, beside ``messages``."""
    time: Annotated[AwareDatetime, BeforeValidator(shown_errors(_as_time))] = _DEFAULT_TIME
    """When the request comes, with its zone; always the same where nothing is written."""
    expect: Annotated[
        ExpectedMessages | tuple[WholeMessage, ...] | None,
        BeforeValidator(shown_errors(_as_expected_messages)),
    ] = None
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
    expect_answer: Annotated[
        ExpectedAnswer | str | None, BeforeValidator(shown_errors(_as_expected_answer))
    ] = None
    """The words that the client gets: all of them as text, or some with ``contains`` and ``lacks``."""

    @property
    def is_idle(self) -> bool:
        """Whether it holds whatever comes."""
        told = any(
            each not in (None, ExpectedMessages(), ExpectedAnswer())
            for each in (self.expect, self.expect_answer)
        )
        named = self.model_fields_set & {"session", "user"}
        return not (told or named or self.parameters or self.absent)
