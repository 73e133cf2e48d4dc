"""Facts over HTTP: what is known of a person, added to, corrected and removed."""

from typing import Annotated, Any, Final

import msgspec
from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from proxy import rest
from proxy.errors import NotFound, RequestError
from proxy.memory.archive.archive import Category, Fact
from proxy.memory.facts.knowledge import Knowledge, Learnt

_LONGEST: Final = 2000
_PATH: Final = "/v1/memory/users/{id}/facts"


def _said(text: str) -> str:
    if not text.strip():
        raise ValueError("write a fact; blanks are none")
    return text


Text = Annotated[str, Field(max_length=_LONGEST), AfterValidator(_said)]


class NewFact(BaseModel):
    """Something to be known of a person."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    text: Text
    category: Category = "core"
    replaces: str | None = None
    importance: Annotated[float, Field(ge=0, le=1)] = 0.5


class Correction(BaseModel):
    """What is put right of a fact; what is left out stays."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    text: Text | None = None
    category: Category | None = None
    importance: Annotated[float, Field(ge=0, le=1)] | None = None


def routes() -> list[Route]:
    """The paths; they are matched undecoded, and the request's scope holds ``parts`` and ``tenant``."""
    return [
        Route(_PATH, rest.answering({"GET": _listed, "POST": _added})),
        Route(f"{_PATH}/{{fact_id}}", rest.answering({"PATCH": _corrected, "DELETE": _removed})),
    ]


async def _listed(request: Request) -> Response:
    known = await _knowledge(request).of(rest.person_of(request))
    return rest.answer({"object": "list", "data": [_shown(fact) for fact in known]})


async def _added(request: Request) -> Response:
    knowledge, person = _knowledge(request), rest.person_of(request)
    new = rest.checked(NewFact, await rest.content(request))
    if new.replaces is not None and await knowledge.find(person, new.replaces) is None:
        raise RequestError("'replaces' names no fact of this user.", param="replaces")
    learnt = Learnt(text=new.text, category=new.category, replaces=new.replaces, importance=new.importance)
    return rest.answer(_shown(await knowledge.learn(person, learnt)), status=201)


async def _corrected(request: Request) -> Response:
    knowledge, person = _knowledge(request), rest.person_of(request)
    wanted = rest.checked(Correction, await rest.content(request))
    fact = await knowledge.find(person, rest.path_id(request, "fact_id"))
    if fact is None:
        raise _missing()
    corrected = msgspec.structs.replace(fact, **wanted.model_dump(exclude_none=True))
    return rest.answer(_shown(await knowledge.correct(person, fact, corrected)))


async def _removed(request: Request) -> Response:
    if not await _knowledge(request).drop(rest.person_of(request), rest.path_id(request, "fact_id")):
        raise _missing()
    return Response(status_code=204)


def _knowledge(request: Request) -> Knowledge:
    archiving = rest.memory_of(request).archiving
    if archiving is None:
        raise NotFound(
            "There is no archive to know anything by; keep sessions in SQL, or set ARCHIVE_URL.",
            code="archive_off",
        )
    return archiving.knowledge


def _missing() -> NotFound:
    return NotFound("This user has no such fact.", param="fact_id", code="fact_not_found")


def _shown(fact: Fact) -> dict[str, Any]:
    """A fact that holds; what is known of one that does not is in an export."""
    return {name: value for name, value in fact.told().items() if name != "superseded"}
