"""Which models the pipelines offer."""

import asyncio
from collections.abc import Iterable
from typing import Any

import msgspec

from proxy.errors import UpstreamError
from proxy.target import Target
from proxy.turn.pipeline import Pipeline
from proxy.upstream import read_all

_LONGEST_LIST = 4_000_000


async def models(pipelines: Iterable[Pipeline]) -> list[dict[str, Any]]:
    """Models in OpenAI's shape: those that the settings name, else what the upstream itself lists."""
    named, asked = {}, []
    for pipeline in pipelines:
        for target in pipeline.targets:
            if model := pipeline.model or target.model:
                named[model] = _model(model, target.name)
            else:
                asked.append(target)
    for found in await asyncio.gather(*map(_listed, {target.name: target for target in asked}.values())):
        named.update({model["id"]: model for model in found if model["id"] not in named})
    return list(named.values())


async def _listed(target: Target) -> list[dict[str, Any]]:
    due = asyncio.get_running_loop().time() + target.first_token
    try:
        response = await target.upstream.open("GET", "/models", target.headers, b"", due=due)
        try:
            body = await read_all(response, _LONGEST_LIST)
        finally:
            response.close()
    except UpstreamError:
        return []
    return _read(body, target.name) if response.status == 200 else []  # noqa: PLR2004


def _read(body: bytes, owner: str) -> list[dict[str, Any]]:
    try:
        data = msgspec.json.decode(body, type=dict[str, Any]).get("data")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return []
    models = data if isinstance(data, list) else []
    return [
        {**_model(model["id"], owner), **model}
        for model in models
        if isinstance(model, dict) and isinstance(model.get("id"), str)
    ]


def _model(name: str, owner: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": owner}
