"""Two upstreams in a race, to the very same moment."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import msgspec

from proxy.observe.observation import Attempts
from proxy.turn.pipeline import Pipeline
from proxy.upstream.attempt import UpstreamAnswer
from proxy.upstream.body import ChatRequest
from proxy.upstream.routing import Dispatch
from tests.peers.fake_upstream import ROLE, delta
from tests.ready import pipeline_of

CONFIG = """
upstreams: {main: {base_url: "practice:"}, reserve: {base_url: "practice:"}}
pipelines: {default: {upstreams: [main, reserve], model: m, hedge: 10ms}}
"""


class Answering:
    """An upstream, and its own answer, that comes when it is told to."""

    status = 200
    headers = ((b"content-type", b"text/event-stream"),)

    def __init__(self, told: asyncio.Event) -> None:
        self.told = told
        self.asked = asyncio.Event()
        self.closed = False
        self.left: Iterator[bytes] = iter([ROLE + delta(content="Hi")])

    async def open(self, *_: object, due: float) -> "Answering":
        self.asked.set()
        await self.told.wait()
        return self

    async def read(self) -> bytes:
        return next(self.left, b"")

    def due(self, at: float) -> None:
        pass

    def close(self) -> None:
        self.closed = True

    async def aclose(self) -> None:
        pass


async def race(pipeline: Pipeline) -> tuple[list[Answering], UpstreamAnswer, int]:
    told = asyncio.Event()
    upstreams = [Answering(told), Answering(told)]
    targets = tuple(
        msgspec.structs.replace(target, upstream=each)
        for target, each in zip(pipeline.targets, upstreams, strict=True)
    )
    question = ChatRequest(model=pipeline.model, headers={}, fields={}, messages=(), streaming=True)
    running = asyncio.create_task(Dispatch(question, targets, pipeline.limits, Attempts()).begin())
    for each in upstreams:
        await each.asked.wait()
    told.set()
    begun = await running
    await asyncio.sleep(0)
    return upstreams, begun, len(asyncio.all_tasks())


def test_of_two_that_arrive_in_the_same_moment_one_is_let_go(tmp_path: Path) -> None:
    upstreams, begun, tasks = asyncio.run(race(pipeline_of(tmp_path / "hedge.yaml", CONFIG)))
    (winner,) = [each for each in upstreams if each is begun.response]
    assert not winner.closed
    assert all(each.closed for each in upstreams if each is not winner)
    assert tasks == 1


def test_what_was_sent_is_the_request_of_the_one_that_answers(tmp_path: Path) -> None:
    config = """
upstreams: {main: {base_url: "practice:", model: a}, reserve: {base_url: "practice:", model: b}}
pipelines: {default: {upstreams: [main, reserve], hedge: 10ms}}
"""
    pipeline = pipeline_of(tmp_path / "hedge.yaml", config)

    async def run() -> tuple[str, bytes]:
        first, second = Answering(asyncio.Event()), Answering(asyncio.Event())
        targets = tuple(
            msgspec.structs.replace(target, upstream=each)
            for target, each in zip(pipeline.targets, (first, second), strict=True)
        )
        question = ChatRequest(model=None, headers={}, fields={}, messages=(), streaming=True)
        dispatch = Dispatch(question, targets, pipeline.limits, Attempts())
        running = asyncio.create_task(dispatch.begin())
        await second.asked.wait()
        first.told.set()
        await running
        return dispatch.upstream, dispatch.sent_body

    upstream, sent = asyncio.run(run())
    assert (upstream, msgspec.json.decode(sent)["model"]) == ("main", "a")
