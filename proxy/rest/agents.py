"""Endpoints that list and add the episodes of an agent."""

from datetime import UTC, datetime
from typing import Annotated, Any, Final

import msgspec
from pydantic import AfterValidator, Field
from starlette.responses import Response

from proxy.clock import wall_time
from proxy.memory.episodes.episodes import DEFAULT_HOURS, EpisodicMemory, ttl_seconds, window_start
from proxy.rest.endpoint import ApiModel, ApiRequest, Routes, at_most, json_response, long_response, validated

_LARGEST: Final = 4000
_HOURS_OF_A_YEAR: Final = 8760
_LONGEST_LIST: Final = 1000


def _check_size(metadata: dict[str, Any]) -> dict[str, Any]:
    if len(msgspec.json.encode(metadata)) > _LARGEST:
        raise ValueError(f"metadata has more than {_LARGEST} bytes as JSON")
    return metadata


def _whole_as_int(hours: float) -> float:
    return int(hours) if hours.is_integer() else hours


class NewEpisode(ApiModel):
    """An interaction that an agent reports; it is stored for ``ttl_hours``."""

    interaction_type: Annotated[str, Field(min_length=1, max_length=128)]
    content: Annotated[str, Field(max_length=_LARGEST)]
    platform: Annotated[str, Field(max_length=128)] | None = None
    metadata: Annotated[dict[str, Any], AfterValidator(_check_size)] | None = None
    ttl_hours: Annotated[float, Field(gt=0, le=_HOURS_OF_A_YEAR), AfterValidator(_whole_as_int)] | None = None

    def at(self, now: float) -> EpisodicMemory:
        """Returns the episode with the time ``now``, in seconds since 1970."""
        return EpisodicMemory(
            timestamp=datetime.fromtimestamp(now, UTC),
            interaction_type=self.interaction_type,
            content=self.content,
            platform=self.platform,
            metadata=self.metadata or {},
            ttl_hours=DEFAULT_HOURS if self.ttl_hours is None else self.ttl_hours,
        )


class EpisodesQuery(ApiModel):
    """A query for the newest ``limit`` episodes of the last ``hours``."""

    hours: Annotated[float, Field(gt=0, le=_HOURS_OF_A_YEAR)] = DEFAULT_HOURS
    limit: Annotated[int, Field(ge=1), at_most(_LONGEST_LIST)] = 50


async def _create(request: ApiRequest) -> Response:
    memory, agent = request.memory, request.key
    episode = validated(NewEpisode, await request.body()).at(wall_time())
    marked = episode.redacted(memory.redaction.rules)
    stored = await memory.episodes.add(agent, marked, ttl=ttl_seconds(episode.ttl_hours))
    return json_response(_episode_fields(stored), status=201)


async def _list(request: ApiRequest) -> Response:
    episodes, agent = request.memory.episodes, request.key
    query = request.query_as(EpisodesQuery)
    since = window_start(wall_time(), query.hours)
    recent = await episodes.recent(agent, since=since, limit=query.limit, background=True)
    return long_response({"object": "list", "data": [_episode_fields(each) for each in recent]})


def _episode_fields(episode: EpisodicMemory) -> dict[str, Any]:
    return {**episode.model_dump(mode="json"), "summary": episode.summary()}


ROUTES: Final[Routes] = (
    ("GET", "/v1/memory/agents/{id}/episodes", _list),
    ("POST", "/v1/memory/agents/{id}/episodes", _create),
)
