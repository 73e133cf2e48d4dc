"""Upstreams that fail, wait and call tools at random: the one that answers knows all tools that ran."""

import asyncio
import json
import random
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from proxy.answer.transcript import transcript
from proxy.errors import UpstreamBroken, UpstreamError, UpstreamTimeout
from proxy.observe.observation import Attempts
from proxy.tools.memory_tools import Offer
from proxy.tools.rounds import Tools
from proxy.turn.pipeline import Pipeline
from proxy.upstream.body import ChatRequest
from proxy.upstream.routing import Dispatch
from tests.peers.fake_upstream import ROLE, delta, stream_of
from tests.ready import pipeline_of
from tests.rounds import OWN, SSE, Kit, calling

CONFIG = """
upstreams:
  main: {base_url: "practice:", retries: 3, first_token: 150ms}
  reserve: {base_url: "practice:", retries: 3, first_token: 150ms}
pipelines: {default: {upstreams: [main, reserve], model: m, first_token: 2s, hedge: 5ms}}
"""
MOST = 3


class Whim:
    """An answer that comes in pieces, each after a while, and may break off."""

    status, headers = 200, SSE

    def __init__(self, chance: random.Random, body: bytes, asked: list[dict]) -> None:
        self.asked = asked
        self.due_at = 0.0
        self._chance = chance
        cuts = sorted(chance.randrange(len(body)) for _ in range(2))
        self._parts = [body[: cuts[0]], body[cuts[0] : cuts[1]], body[cuts[1] :]]
        self._breaks = chance.random() < 0.2
        self.closed = False

    async def read(self) -> bytes:
        await asyncio.sleep(self._chance.choice([0, 0, 0.002, 0.01]))
        if asyncio.get_running_loop().time() > self.due_at:
            raise UpstreamTimeout("late")
        if self._breaks and len(self._parts) < 2:
            raise UpstreamBroken("broken")
        return self._parts.pop(0) if self._parts else b""

    def offer(self, take: object) -> None:
        pass

    @property
    def exhausted(self) -> bool:
        return False

    def due(self, at: float) -> None:
        self.due_at = at

    def close(self) -> None:
        self.closed = True


class Moody:
    """A model that calls a tool, talks or fails, as chance has it."""

    def __init__(self, chance: random.Random, given: list[Whim]) -> None:
        self._chance = chance
        self._given = given

    async def open(self, *request: object, due: float) -> Whim:
        asked = json.loads(request[3])["messages"]
        await asyncio.sleep(self._chance.choice([0, 0.001, 0.01]))
        if self._chance.random() < 0.2:
            raise UpstreamBroken("no")
        fact = json.dumps({"text": f"{self._chance.random()}"})
        calls = [calling("memory_store", arguments=fact), calling("memory_store", "weather", arguments=fact)]
        body = self._chance.choice(
            [*calls, calls[0], stream_of("Hi"), ROLE + delta(content="Hm. ") + calls[0]]
        )
        answer = Whim(self._chance, body, asked)
        answer.due(due)
        self._given.append(answer)
        return answer

    async def aclose(self) -> None:
        pass


class Noting(Kit):
    """Takes its time, and tells each time something else."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self._chance = chance

    async def run(self, name: str, arguments: str, until: float) -> str:
        self.done.append((name, arguments))
        await asyncio.sleep(self._chance.choice([0, 0.001, 0.01]))
        return arguments


async def turn(pipeline: Pipeline, seed: int) -> tuple[Kit, list[Whim], bytes, Dispatch]:
    chance = random.Random(seed)
    given: list[Whim] = []
    targets = tuple(msgspec.structs.replace(each, upstream=Moody(chance, given)) for each in pipeline.targets)
    kit = Noting(chance)
    tools = Tools(Offer({}, OWN, {}, {}), kit, MOST)
    question = ChatRequest(
        model=pipeline.model, headers={}, fields={}, messages=(), streaming=True, tools=tools
    )
    dispatch = Dispatch(question, targets, pipeline.limits, Attempts())
    seen = b""
    try:
        begun = await dispatch.begin()
        seen = begun.data
        with closing(begun.response) as response:
            while data := await response.read():
                seen += data
    except UpstreamError:
        pass
    await asyncio.sleep(0)
    assert len(asyncio.all_tasks()) == 1
    return kit, given, seen, dispatch


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    folder: Path = tmp_path_factory.mktemp("race")
    return pipeline_of(folder / "race.yaml", CONFIG)


@pytest.mark.parametrize("seed", range(80))
def test_nothing_is_carried_out_twice_or_behind_an_answer_s_back(pipeline: Pipeline, seed: int) -> None:
    kit, given, seen, dispatch = asyncio.run(turn(pipeline, seed))
    assert all(each.closed for each in given)
    told = transcript(seen)
    results = [[m["content"] for m in each.asked if m["role"] == "tool"] for each in given]
    results = [[result for result in each if "not done" not in result] for each in results]
    longest = max(results, key=len, default=[])
    assert all(longest[: len(each)] == each for each in results), "one conversation, not two"
    assert len(set(kit.done)) == len(kit.done)
    assert [arguments for _, arguments in kit.done][: len(longest)] == longest
    assert len(longest) <= dispatch.dialogue.rounds <= MOST + 1
    aside = [call for call in told.tool_calls or () if call["function"]["name"] == "weather"]
    assert len(kit.done) - dispatch.dialogue.rounds <= max(len(aside), int(not told.finished))
    assert b"memory_store" not in seen
