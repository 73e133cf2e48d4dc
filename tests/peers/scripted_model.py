"""A model that plays every part: it answers callers, and finds facts and writes notes when it is asked to."""

import json
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tests.peers.fake_upstream import DONE, ROLE, Received, Step, answer, completion, delta, sse, stream_of

Said = dict[str, Any]
Find = Callable[[Sequence[Said], Sequence[Said]], Any]
"""From what was said and what is known, a line each, to facts as the model lists them."""
Talk = Callable[[Received], Iterable[Step]]


def is_extraction(request: Received) -> bool:
    """Whether this asks for facts."""
    return "<said>" in request.json["messages"][-1]["content"]


def lines(request: Received, name: str) -> list[Said]:
    """The data that an extraction is shown between two marks."""
    content = request.json["messages"][-1]["content"]
    inner = re.search(rf"<{name}>\n(.*?)</{name}>", content, re.DOTALL)
    assert inner, content
    return [json.loads(line) for line in inner[1].splitlines()]


def fact(text: str, *evidence: int, **more: Any) -> Said:
    """A fact as a model lists it."""
    plain = {"category": "core", "evidence": list(evidence), "replaces": None, "importance": 0.5}
    return {"text": text, **plain, **more}


def listed(facts: Any) -> list[Step]:
    """The script of an answer that lists facts."""
    return answer(completion(json.dumps({"facts": facts})))


def says(text: str) -> Talk:
    """Always the same answer."""
    return lambda _: sse(stream_of(text))


def calls(name: str, **arguments: Any) -> list[Step]:
    """The script of an answer that calls a tool."""
    call = {
        "index": 0,
        "id": "call_1",
        "type": "function",
        "function": {"name": name, "arguments": json.dumps(arguments)},
    }
    return sse(ROLE + delta(tool_calls=[call]) + delta(finish="tool_calls") + DONE)


def model(find: Find, talk: Talk) -> Talk:
    """A model that finds facts by one function and talks by another."""

    def script(request: Received) -> Iterable[Step]:
        if is_extraction(request):
            return listed(find(lines(request, "said"), lines(request, "known")))
        return talk(request)

    return script
