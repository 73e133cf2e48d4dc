"""Whose turn it is: the session and the user that a call names, under the tenant of its key."""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final
from urllib.parse import quote

import msgspec

from proxy.memory.store import Key
from proxy.place import Place, decoded, identifier, is_given, newest_user, opened, written
from proxy.proof import HEADER, Proof
from proxy.wire import Call


class Identity(msgspec.Struct, frozen=True, gc=False):
    """Whose turn it is; the same id under two tenants is two ids. ``background`` work has no memory.

    ``ignored`` names the places where something stood that can be no id. ``by_message`` is whether it is the
    newest message that says who the user is, and nobody has to prove it.
    """

    tenant: str
    session: str | None
    user: str | None
    background: bool
    ignored: tuple[str, ...] = ()
    by_message: bool = False

    @property
    def key(self) -> Key | None:
        """What the session is remembered under; ``None`` where nothing is."""
        return None if self.session is None or self.background else Key(self.tenant, self.session)


class Places(msgspec.Struct, frozen=True):
    """Where to look for the session and the user, in this order; the first usable id counts.

    With a ``proof``, a user counts who is proven to be one.
    """

    session: tuple[Place, ...]
    user: tuple[Place, ...]
    default_session: str | None = None
    proof: Proof | None = None


def _places(*spellings: str) -> tuple[Place, ...]:
    return tuple(Place.parse(spelling) for spelling in spellings)


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
    "body:channel",  # Agora, as a caller's llm.params name it
    "body:params.channel",
    "body:context.channel",
    "header:X-Agora-Customllm-Channel",
)

# Agora's X-Agora-Customllm-Uid is missing on purpose: it names the agent, who is the same for every caller.
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

# A body's user is what an engine says of a caller, and nobody signs it.
PROVEN_PLACES: Final = _places("header:X-User-Id")

_BACKGROUND: Final = _places("header:X-Background", "body:metadata.background")
_YES: Final = frozenset({"true", "1", "yes"})
_PLAIN: Final = re.compile("[A-Za-z0-9._-]*").fullmatch
_VISIBLE: Final = "".join(map(chr, range(0x21, 0x7F))).replace("%", "")


def of(call: Call, places: Places, tenant: str) -> Identity:
    """Whose turn ``call`` is; what cannot be an id is passed over, named and never raises."""
    found = _Found(call)
    named = found.first(places.session) or places.default_session
    user, whence_ = found.hit(places.user) or (None, None)
    return Identity(
        tenant,
        named,
        user,
        any(map(_says_yes, found.values(_BACKGROUND))),
        tuple(found.ignored),
        whence_ is not None and whence_.source == "message" and places.proof is None,
    )


def prove(who: Identity, places: Places, headers: Mapping[str, str]) -> None:
    """Raises Unauthorized where a user has to be proven to be one, and is not."""
    if places.proof:
        places.proof.check(who.user, headers.get(HEADER))


def found(call: Call, places: Iterable[Place]) -> str | None:
    """The first usable id that a call names at these places."""
    return _Found(call).first(places)


def whence(call: Call, places: Iterable[Place]) -> Place | None:
    """The first of these places that holds a usable id."""
    found = _Found(call)
    return next((place for place in places if found.first((place,)) is not None), None)


def header_value(id: str) -> str:  # noqa: A002 - an id is called an id
    """An id as a header can carry it: visible ASCII, all else percent-encoded; ``unquote`` gives it back."""
    return id if _PLAIN(id) else quote(id, safe=_VISIBLE, errors="surrogatepass")


class _Found:
    """What one call says at its places; an object is decoded once, and only when a place leads into it."""

    __slots__ = ("_objects", "_sources", "ignored")

    def __init__(self, call: Call) -> None:
        self.ignored: list[str] = []
        self._objects: dict[tuple[str, str], Mapping[Any, Any]] = {}
        self._sources: dict[str, Mapping[str, Any]] = {
            "header": call.headers,
            "query": call.query,
            "body": call.fields,
            "message": newest_user(call.messages),
        }

    def first(self, places: Iterable[Place]) -> str | None:
        hit = self.hit(places)
        return hit and hit[0]

    def hit(self, places: Iterable[Place]) -> tuple[str, Place] | None:
        """The first usable id, and the place that holds it."""
        sources = self._sources
        for place in places:
            if place.name in sources[place.source]:
                value = self._value(place)
                found = identifier(value)
                if found is not None:
                    return found, place
                if is_given(value):
                    self.ignored.append(place.spelling)
        return None

    def values(self, places: Iterable[Place]) -> list[object]:
        return [self._value(place) for place in places if place.name in self._sources[place.source]]

    def _value(self, place: Place) -> object:
        if place.source == "header":
            return written(self._sources["header"][place.name])
        if not place.steps:
            return decoded(self._sources[place.source][place.name])
        *between, last = place.steps
        inner = self._object(place)
        for step in between:
            inner = opened(inner.get(step))
        return inner.get(last)

    def _object(self, place: Place) -> Mapping[Any, Any]:
        key = (place.source, place.name)
        if key not in self._objects:
            self._objects[key] = opened(decoded(self._sources[place.source][place.name]))
        return self._objects[key]


def _says_yes(value: object) -> bool:
    return value is True or (isinstance(value, str) and value.strip().lower() in _YES)
