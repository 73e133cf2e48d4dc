"""A model that knows what a few words are about: its vectors and its rankings, and an upstream with both."""

import json
import re
from collections.abc import Sequence
from typing import Any

from proxy.memory.archive.records import Vector
from proxy.memory.archive.vectors import normalize
from tests.peers.fake_upstream import Received, Step, answer, by_default

ABOUT = (
    {"dog", "puppy", "hound", "rex", "bark"},
    {"flat", "apartment", "berlin", "moved", "live"},
    {"tea", "drink", "beverage", "coffee"},
    {"doctor", "physician", "ill"},
)


def numbers(text: str) -> list[float]:
    """How much a text is about each of these; 0.1 of what nothing is said of."""
    words = set(re.findall(r"\w+", text.lower()))
    return [float(len(words & about)) for about in ABOUT] + [0.1]


def vector(text: str) -> Vector:
    return normalize(numbers(text))


def embeddings(request: Received) -> list[Step]:
    lines = [
        {"object": "embedding", "index": index, "embedding": numbers(text)}
        for index, text in enumerate(request.json["input"])
    ]
    return answer({"object": "list", "model": request.json["model"], "data": lines[::-1]})


def ranking(request: Received) -> list[Step]:
    """Ranks the longest text first."""
    documents = request.json["documents"]
    lines = [{"index": i, "relevance_score": len(text) / 1000} for i, text in enumerate(documents)]
    return answer({"results": sorted(lines, key=lambda line: -line["relevance_score"])})


def knowing(request: Received) -> Any:
    """The script of an upstream that has all three paths."""
    for path, script in (("/embeddings", embeddings), ("/rerank", ranking)):
        if request.path.endswith(path):
            return script(request)
    return by_default(request)


def asked(requests: Sequence[Received], path: str) -> list[Any]:
    """The bodies that were sent to a path."""
    return [json.loads(one.body) for one in requests if one.path.endswith(path)]
