"""Persons over HTTP: what bears on a question, all that is held of one, and its end."""

import asyncio
import time
from typing import Annotated, Any, Final

import msgspec
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from proxy import rest
from proxy.errors import SessionsUnreadable
from proxy.memory.archive.archive import Found, Query
from proxy.memory.errors import Unread
from proxy.memory.privacy import People
from proxy.memory.stores.store import Owner
from proxy.turn.identity import identifier

_LONGEST = 2000
_MOST_FOUND = 100
_ALL_ELSE: Final = "All that can be read of them is removed, but"
_WAYS_OUT: Final = (
    "Give back the key that they were encrypted with, or delete each (DELETE /v1/memory/sessions/{id}), or"
    " wait until they expire; then ask again."
)


class SearchAsked(BaseModel):
    """A question about a person; without a person there is no answer."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    user: str | int | None = None
    query: Annotated[str, Field(max_length=_LONGEST)]
    limit: Annotated[int, Field(ge=1), rest.at_most(_MOST_FOUND)] = 10


def routes() -> list[Route]:
    """The paths; they are matched undecoded, and the request's scope holds ``parts`` and ``tenant``."""
    return [
        Route("/v1/memory/search", rest.answering({"POST": _found})),
        Route("/v1/memory/users/{id}/export", rest.answering({"GET": _exported})),
        Route("/v1/memory/users/{id}", rest.answering({"DELETE": _forgotten})),
    ]


async def _found(request: Request) -> Response:
    finder = rest.archiving_of(request).finder
    asked = rest.checked(SearchAsked, await rest.content(request))
    person = Owner(request.scope["tenant"], identifier(asked.user) or "")
    zone = request.scope["parts"].zone
    query = Query(text=asked.query, now=time.time(), limit=asked.limit, zone=zone)
    return rest.answer({"results": [_told(one) for one in await finder.search(person, query)]})


def _told(found: Found) -> dict[str, Any]:
    """What was found, by name; what a fact or a document is known by says nothing of a session."""
    return {name: value for name, value in msgspec.structs.asdict(found).items() if name != "source"}


async def _exported(request: Request) -> Response:
    found = await rest.people_of(request).exported(rest.person_of(request))
    # In a thread: it may be long, and callers wait on the loop.
    return await asyncio.to_thread(rest.answer, found)


async def _forgotten(request: Request) -> Response:
    """The same again is no fault: who is forgotten stays so."""
    await forget(rest.people_of(request), rest.person_of(request))
    return Response(status_code=204)


async def forget(people: People, person: Owner) -> None:
    """Removes all of a person; raises SessionsUnreadable, once all else is gone, and StoreError."""
    try:
        await people.forget(person)
    except Unread as fault:
        raise SessionsUnreadable(f"{_ALL_ELSE} {fault}. {_WAYS_OUT}", fault.sessions) from None
