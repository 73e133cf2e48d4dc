"""Agents over HTTP: what each did lately, under the caller's tenant."""

import asyncio
import time
from datetime import UTC, datetime
from typing import Annotated, Any, Final

import msgspec
from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from proxy.memory.episodes.episode import DEFAULT_HOURS, EpisodicMemory, ttl_seconds, window_start
from proxy.rest import validation
from proxy.rest.endpoint import body_of, by_method, json_response, key_of, memory_of

_LARGEST: Final = 4000
_HOURS_OF_A_YEAR: Final = 8760
_LONGEST_LIST: Final = 1000


def _small(metadata: dict[str, Any]) -> dict[str, Any]:
    if len(msgspec.json.encode(metadata)) > _LARGEST:
        raise ValueError(f"metadata has more than {_LARGEST} bytes as JSON")
    return metadata


def _as_written(hours: float) -> float:
    return int(hours) if hours.is_integer() else hours


class NewEpisode(BaseModel):
    """An interaction as an agent reports it; it lasts ``ttl_hours``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    interaction_type: Annotated[str, Field(min_length=1, max_length=128)]
    content: Annotated[str, Field(max_length=_LARGEST)]
    platform: Annotated[str, Field(max_length=128)] | None = None
    metadata: Annotated[dict[str, Any], AfterValidator(_small)] | None = None
    ttl_hours: Annotated[float, Field(gt=0, le=_HOURS_OF_A_YEAR), AfterValidator(_as_written)] | None = None

    def at(self, now: float) -> EpisodicMemory:
        """The episode, as it happened at ``now``, in seconds since 1970."""
        return EpisodicMemory(
            timestamp=datetime.fromtimestamp(now, UTC),
            interaction_type=self.interaction_type,
            content=self.content,
            platform=self.platform,
            metadata=self.metadata or {},
            ttl_hours=DEFAULT_HOURS if self.ttl_hours is None else self.ttl_hours,
        )


class EpisodesAsked(BaseModel):
    """Which episodes are asked for."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    hours: Annotated[float, Field(gt=0, le=_HOURS_OF_A_YEAR)] = DEFAULT_HOURS
    limit: Annotated[int, Field(ge=1), validation.at_most(_LONGEST_LIST)] = 50


def routes() -> list[Route]:
    """The path; it is matched undecoded, and the request's scope holds ``parts`` and ``tenant``."""
    endpoints = by_method({"GET": _recent, "POST": _added})
    return [Route("/v1/memory/agents/{id}/episodes", endpoints)]


async def _added(request: Request) -> Response:
    episodes, agent = memory_of(request).episodes, key_of(request)
    new = validation.validated(NewEpisode, await body_of(request))
    episode = new.at(time.time())
    kept = await episodes.add(agent, episode, ttl=ttl_seconds(episode.ttl_hours))
    return json_response(_shown(kept), status=201)


async def _recent(request: Request) -> Response:
    episodes, agent = memory_of(request).episodes, key_of(request)
    wanted = validation.validated_query(EpisodesAsked, request)
    since = window_start(time.time(), wanted.hours)
    found = await episodes.recent(agent, since=since, limit=wanted.limit, background=True)
    # In a thread: it may be long, and callers wait on the loop.
    return await asyncio.to_thread(_listed, found)


def _listed(found: list[EpisodicMemory]) -> Response:
    return json_response({"object": "list", "data": [_shown(one) for one in found]})


def _shown(episode: EpisodicMemory) -> dict[str, Any]:
    return {**episode.model_dump(mode="json"), "summary": episode.summary()}
