"""The permanent log over HTTP: what was said in a session, whether or not that is still held."""

from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from proxy import rest
from proxy.errors import NotFound
from proxy.memory.archive.archive import Turn
from proxy.memory.interchange import contents

_MOST: Final = 100


class _Page(BaseModel):
    """Which turns are wanted: those behind the ``after``th."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    after: Annotated[int, Field(ge=0, le=2**31)] = 0
    limit: Annotated[int, Field(ge=1), rest.at_most(_MOST)] = 50


def routes(root: str) -> list[Route]:
    """The path under a session's own."""
    return [Route(f"{root}/{{id}}/turns", rest.answering({"GET": _listed}))]


async def _listed(request: Request) -> Response:
    archive = rest.archiving_of(request).archive
    key = rest.key_of(request)
    page = rest.checked_query(_Page, request)
    found = await archive.turns_of(key, start=page.after, limit=page.limit + 1)
    if not found and not page.after:
        fault = f"Nothing is archived of a session '{key.session}'."
        raise NotFound(fault, param="id", code="session_not_found")
    shown = found[: page.limit]
    data = [_told(number, turn) for number, turn in enumerate(shown, page.after + 1)]
    last = data[-1]["number"] if data else None
    return rest.answer({"object": "list", "data": data, "has_more": len(found) > len(shown), "last": last})


def _told(number: int, turn: Turn) -> dict[str, Any]:
    return {"number": number, "timestamp": turn.at, "message": contents([turn.entry])[0]}
