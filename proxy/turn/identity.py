"""The session and the user of a request, and where in it their ids may stand."""

import ast
import hashlib
import hmac
import re
import warnings
from collections.abc import Iterable, Mapping
from typing import Any, Final, Self
from urllib.parse import quote

import msgspec

from filters.message import REPLACEMENT, newest_user
from proxy.answer.sse import decode_raw
from proxy.errors import Unauthorized
from proxy.memory.session import Attempt, attempt
from proxy.memory.stores.store import Key
from proxy.turn.request import ClientRequest

_LONGEST_ID = 256
_LARGEST_NUMBER = 10**_LONGEST_ID  # str() of an int has a limit of its own, and raises
_LONGEST_EMBEDDED = 8192
# Controls and line breaks could end a header or a log line; a lone surrogate cannot be stored as UTF-8. Of
# ids in which it was replaced, two could be one.
_UNFIT = re.compile(f"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff{REPLACEMENT}]")
_PLACE = re.compile(r"header:[A-Za-z0-9!#$%&'*+.^_`|~-]+|query:\S+|(?:body|message):[^\s.]+(?:\.[^\s.]+)*")
# Clients resolve these in a path, and never ask for what they name.
_PATH_STEPS = {".", ".."}
_CREDENTIALS = {"authorization", "proxy-authorization", "cookie", "x-api-key", "api-key"}
_NO_IDS = {
    "body": {"messages"},
    "message": {"role", "content", "tool_calls", "tool_call_id", "turn_id", "timestamp"},
}
HMAC_HEADER: Final = "x-user-hmac"
_HMAC_ADVICE: Final = (
    "Send X-User-Hmac with the user's id: its HMAC-SHA256 in hexadecimal, under 'identity.user_hmac'."
)
_YES: Final = frozenset({"true", "1", "yes"})
_PLAIN: Final = re.compile("[A-Za-z0-9._-]*").fullmatch
_VISIBLE: Final = "".join(map(chr, range(0x21, 0x7F))).replace("%", "")
_RETRIES: Final = "x-stainless-retry-count"


class IdPlace(msgspec.Struct, frozen=True):
    """Where an id may stand: ``header:X-User-Id``, ``query:user_id``, ``body:call.id``, ``message:name``.

    ``message`` is the newest user message. ``name`` is the key to look up (a header's in lower case);
    ``steps`` lead on from there into an object, and through a string that holds one.
    """

    source: str
    name: str
    steps: tuple[str, ...]
    spelling: str

    @classmethod
    def parse(cls, spelling: str) -> Self:
        """The place that ``spelling`` names; raises ValueError, which quotes nothing, for a wrong one."""
        if not _PLACE.fullmatch(spelling):
            raise ValueError(
                "write a place such as header:X-Session-Id, query:user_id, body:call.id or"
                " message:metadata.user"
            )
        source, _, path = spelling.partition(":")
        if source == "header":
            if path.lower() in _CREDENTIALS:
                raise ValueError("this header is a secret, and ids are stored and shown; name another place")
            return cls(source, path.lower(), (), spelling)
        name, *steps = [path] if source == "query" else path.split(".")
        if name in _NO_IDS.get(source, ()):
            raise ValueError(
                "this place cannot contain an id; a message's speaker is in message:metadata.user"
            )
        return cls(source, name, tuple(steps), spelling)

    def __str__(self) -> str:
        return self.spelling


def identifier(value: object) -> str | None:
    """``value`` as an id: a short printable text other than ``.`` and ``..``, or a whole number."""
    if type(value) is int and abs(value) < _LARGEST_NUMBER:
        value = str(value)
    if not isinstance(value, str):
        return None
    text = value.strip(" ")
    if len(text) > _LONGEST_ID or _UNFIT.search(text):
        return None
    text = text.strip()
    return None if text in _PATH_STEPS else text or None


def header_text(value: str) -> str:
    """A header's value decoded: as UTF-8 where its bytes are that, else as Latin-1.

    ``value`` has a character for each byte. Half a surrogate pair counts as UTF-8.
    """
    if value.isascii():
        return value
    try:
        return value.encode("latin-1").decode("utf-8", "surrogatepass")
    except UnicodeError:
        return value


def as_object(value: object) -> Mapping[Any, Any]:
    """The object that ``value`` is, or holds as text, in JSON or Python; an empty one otherwise."""
    if isinstance(value, str):
        text = value.strip() if len(value) <= _LONGEST_EMBEDDED else ""
        value = None
        if text.startswith("{"):
            try:
                value = msgspec.json.decode(text)
            except (msgspec.DecodeError, ValueError, RecursionError):
                value = _literal(text)
    return value if isinstance(value, dict) else {}


def _literal(text: str) -> object:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the parser would print a user's words to stderr
        try:
            return ast.literal_eval(text)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError, SystemError):
            return None


class UserProof:
    """Checks user ids against their HMAC-SHA256 in hexadecimal, under a secret."""

    def __init__(self, secret: str) -> None:
        self._secret = secret.encode()

    def check(self, user: str | None, headers: Mapping[str, str]) -> None:
        """Raises Unauthorized for an id without its HMAC; a request without a user needs none."""
        if user is None:
            return
        expected = hmac.new(self._secret, user.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()
        received = headers.get(HMAC_HEADER, "").strip().lower().encode("latin-1", "replace")
        if not hmac.compare_digest(expected.encode(), received):
            raise Unauthorized(_HMAC_ADVICE, code="invalid_user_hmac")


class Identity(msgspec.Struct, frozen=True, gc=False):
    """Whose turn it is. Ids are unique within a tenant. A ``background`` request has no memory.

    ``ignored`` are the places whose values cannot be ids. ``user_from_message`` is whether the user's id
    comes from the newest message, without an HMAC.
    """

    tenant: str
    session: str | None
    user: str | None
    background: bool
    ignored: tuple[str, ...] = ()
    user_from_message: bool = False

    @property
    def key(self) -> Key | None:
        """The session's key in memory; ``None`` where nothing is remembered."""
        return None if self.session is None or self.background else Key(self.tenant, self.session)


class IdPlaces(msgspec.Struct, frozen=True):
    """Where the ids of the session and the user may stand; the first usable one counts.

    ``default_session`` is the session of a request that names none. With a ``proof``, a user's id needs an
    HMAC.
    """

    session: tuple[IdPlace, ...]
    user: tuple[IdPlace, ...]
    default_session: str | None = None
    proof: UserProof | None = None


def _places(*spellings: str) -> tuple[IdPlace, ...]:
    return tuple(IdPlace.parse(spelling) for spelling in spellings)


SESSION_PLACES: Final = _places(
    "header:X-Session-Id",
    "query:session_id",
    "query:sessionId",
    "body:session_id",
    "body:params.session_id",
    "query:custom_session_id",  # Hume
    "header:X-Task-Id",  # Tencent
    "body:call.id",  # Vapi
    "body:call.callId",
    "body:agent_info.agent_instance_id",  # ZEGO
    "body:agent_info.room_id",
    "body:custom.session_id",  # Volcengine
    "body:extendData.instanceId",  # Alibaba
    "body:extendData.channelId",
    "body:channel",  # Agora, as an agent's llm.params name it
    "body:params.channel",
    "body:context.channel",
    "header:X-Agora-Customllm-Channel",
)

# Agora's X-Agora-Customllm-Uid is missing on purpose: it names the agent, the same one in every call.
USER_PLACES: Final = _places(
    "header:X-User-Id",
    "query:user_id",
    "body:user_id",
    "body:params.user_id",
    "body:customer.number",  # Vapi
    "body:call.customer.number",
    "body:agent_info.user_id",  # ZEGO
    "body:custom.user_id",  # Volcengine
    "body:context.userId",  # Agora
    "body:user_uid",
    "body:params.user_uid",
    "message:metadata.user",
    "body:user",
)

# The user of a body is the voice platform's word, which nobody signs.
PROVEN_PLACES: Final = _places("header:X-User-Id")

_NUMBERING: Final = frozenset({"turn_id", "interruptable"})
_BACKGROUND: Final = _places(
    "header:X-Background",
    "query:background",
    "body:metadata.background",
    "body:background",  # Agora's llm.params, and metadata that Vapi spreads
    "body:params.background",
    "body:params.metadata.background",
    "body:custom.background",  # Volcengine
    "body:extendData.background",  # Alibaba
)

ATTEMPT_PLACES: Final = _places(
    "header:X-Request-Id",  # Tencent; the same when it tries again
    "header:Idempotency-Key",
    "body:round_id",  # Volcengine
    "body:extendData.sentenceId",  # Alibaba
)


def identify(request: ClientRequest, places: IdPlaces, tenant: str) -> Identity:
    """Finds the session and the user of a request; unusable values are skipped and listed in ``ignored``."""
    ids = _RequestIds(request)
    session, _ = ids.find(places.session)
    user, place = ids.find(places.user)
    return Identity(
        tenant,
        session or places.default_session,
        user,
        ids.has_flag(_BACKGROUND),
        tuple(ids.ignored),
        place is not None and place.source == "message" and places.proof is None,
    )


def attempt_of(request: ClientRequest) -> Attempt:
    """The request's own name, and whether it is a retry, as far as the client says so."""
    # OpenAI's own clients count how often they have tried.
    retries = request.headers.get(_RETRIES)
    is_retry = None if retries is None or not retries.isdecimal() else bool(retries.strip("0"))
    name, _ = _RequestIds(request).find(ATTEMPT_PLACES)
    return attempt(name, is_retry=is_retry)


def find_id(request: ClientRequest, places: Iterable[IdPlace]) -> tuple[str, IdPlace] | tuple[None, None]:
    """The first usable id that a request has at these places, and the place that holds it."""
    return _RequestIds(request).find(places)


def is_from_platform(request: ClientRequest) -> bool:
    """Whether a voice platform sent the request: it has turn ids, or messages with a source."""
    return not _NUMBERING.isdisjoint(request.fields) or any(
        isinstance(message.turn_id, int) or message.source is not None for message in request.messages
    )


def header_value(id: str) -> str:  # noqa: A002 - an id is called an id
    """An id as a header can carry it: visible ASCII, all else percent-encoded; ``unquote`` gives it back."""
    return id if _PLAIN(id) else quote(id, safe=_VISIBLE, errors="surrogatepass")


class _RequestIds:
    """Looks ids up in one request; an object is decoded once, and only for a place inside it."""

    __slots__ = ("_messages", "_objects", "_sources", "ignored")

    def __init__(self, request: ClientRequest) -> None:
        self.ignored: list[str] = []
        self._messages = request.messages
        self._objects: dict[tuple[str, str], Mapping[Any, Any]] = {}
        self._sources: dict[str, Mapping[str, Any]] = {
            "header": request.headers,
            "query": request.query,
            "body": request.fields,
        }

    def find(self, places: Iterable[IdPlace]) -> tuple[str, IdPlace] | tuple[None, None]:
        """The first usable id, and the place that holds it."""
        sources = self._sources
        for place in places:
            if place.source not in sources:
                newest, fields = newest_user(self._messages), dict[str, Any]()
                if newest is not None:  # its fields besides its content
                    message = self._messages[newest]
                    fields = {"metadata": {**message.others, **(message.metadata or {})}}
                    fields |= {"name": message.name, **message.others}
                sources["message"] = fields
            if place.name in sources[place.source]:
                value = self._value(place)
                text = identifier(value)
                if text is not None:
                    return text, place
                if value.strip() if isinstance(value, str) else value is not None:
                    self.ignored.append(place.spelling)
        return None, None

    def has_flag(self, places: Iterable[IdPlace]) -> bool:
        """Whether the value at any of these places is true."""
        for place in places:
            if place.name in self._sources[place.source]:
                flag = self._value(place)
                if flag is True or (isinstance(flag, str) and flag.strip().lower() in _YES):
                    return True
        return False

    def _value(self, place: IdPlace) -> object:
        """The value at a place whose name is present; ``None`` where it cannot be read."""
        value = self._sources[place.source][place.name]
        if place.source == "header":
            return header_text(value)
        if not place.steps:
            return decode_raw(value)
        key = (place.source, place.name)
        inner = self._objects.get(key)
        if inner is None:
            inner = self._objects[key] = as_object(decode_raw(value))
        for step in place.steps[:-1]:
            inner = as_object(inner.get(step))
        return inner.get(place.steps[-1])
