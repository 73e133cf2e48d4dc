"""Of the cancellations that meet in one task, a superseded turn takes back its own and no other."""

import asyncio
import time
from collections.abc import Coroutine, MutableMapping
from typing import Any

import pytest

from proxy.edge.hangup import ClientGone, until_gone
from proxy.edge.reply import Reply
from proxy.errors import Superseded
from proxy.flight import InFlight
from proxy.memory.store import Key
from proxy.supersession import Asked
from proxy.wire import Call
from tests.calls import call_of

KEY = Key("default", "s1")


class Client:
    """Takes what it is sent, unless it is stalled; leaves when told to."""

    def __init__(self) -> None:
        self.gone = asyncio.Event()
        self.ready = asyncio.Event()
        self.ready.set()
        self.sent: list[Any] = []

    async def receive(self) -> MutableMapping[str, Any]:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: MutableMapping[str, Any]) -> None:
        await self.ready.wait()
        self.sent.append(message)


def asking(text: str) -> Call:
    return call_of({"messages": [{"role": "user", "content": text, "turn_id": 1}]})


async def flown(turns: InFlight, text: str, reply: Reply, work: Coroutine[Any, Any, Any]) -> None:
    with turns.turn(KEY, asking(text), reply):
        await work


async def begun(client: Client, turns: InFlight, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[None]":
    """An older turn that carries out ``work``."""
    taken = flown(turns, "Tell", Reply(client.send), work)
    task = asyncio.create_task(until_gone(client.receive, taken))
    await asyncio.sleep(0.01)
    return task


async def overtake(turns: InFlight, text: str = "Tell me") -> None:
    await flown(turns, text, Reply(Client().send), asyncio.sleep(0))


def test_a_superseded_turn_says_so_and_leaves_its_task_uncancelled():
    async def scene() -> None:
        turns, client = InFlight(), Client()
        older = await begun(client, turns, asyncio.sleep(9))
        await overtake(turns)
        with pytest.raises(Superseded):
            await older
        assert older.cancelling() == 0
        assert len(turns) == 0

    asyncio.run(scene())


@pytest.mark.parametrize("left_first", [False, True])
def test_a_client_that_leaves_in_the_same_moment_has_left(left_first: bool):
    async def scene() -> None:
        turns, client = InFlight(), Client()
        older = await begun(client, turns, asyncio.sleep(9))
        if left_first:
            client.gone.set()
            await asyncio.sleep(0)
        newer = asyncio.create_task(overtake(turns))
        client.gone.set()
        with pytest.raises((ClientGone, Superseded)):
            await older
        await newer
        assert older.cancelling() == 0
        assert len(turns) == 0

    asyncio.run(scene())


@pytest.mark.parametrize("ended_first", [False, True])
def test_the_server_s_end_in_the_same_moment_is_the_end(ended_first: bool):
    async def scene() -> None:
        turns, client = InFlight(), Client()
        older = await begun(client, turns, asyncio.sleep(9))
        if ended_first:
            older.cancel()
        with turns.turn(KEY, asking("Tell me"), Reply(client.send)):
            pass
        if not ended_first:
            older.cancel()
        with pytest.raises(asyncio.CancelledError):
            await older
        assert older.cancelled()

    asyncio.run(scene())


def test_a_turn_is_superseded_once_however_many_follow():
    async def scene() -> None:
        turns, client = InFlight(), Client()
        older = await begun(client, turns, asyncio.sleep(9))
        for text in ("Tell me", "Tell me more"):
            with turns.turn(KEY, asking(text), Reply(client.send)):
                pass
        with pytest.raises(Superseded):
            await older
        assert older.cancelling() == 0

    asyncio.run(scene())


@pytest.mark.parametrize("whole", [False, True])
def test_an_answer_whose_last_bytes_are_on_their_way_is_left_alone(whole: bool):
    async def scene() -> None:
        turns, client = InFlight(), Client()
        client.ready.clear()
        reply = Reply(client.send)
        last = reply.whole(200, [], b"{}") if whole else reply.end(b"data: [DONE]\n\n")
        older = asyncio.create_task(flown(turns, "Tell", reply, last))
        await asyncio.sleep(0.01)
        await overtake(turns)
        client.ready.set()
        await older
        assert client.sent[-1]["body"] in (b"{}", b"data: [DONE]\n\n")

    asyncio.run(scene())


@pytest.mark.parametrize("step", [-1800.0, 1800.0])
def test_another_processes_turn_is_newer_whatever_the_clock_was_set_to(
    monkeypatch: pytest.MonkeyPatch, step: float
):
    told: list[float] = []
    elsewhere, here, real = InFlight(), InFlight(), time.time
    elsewhere.tell = lambda _line, at, _asked: told.append(at)

    async def scene() -> None:
        older = await begun(Client(), here, asyncio.sleep(60))
        monkeypatch.setattr(time, "time", lambda: real() + step)
        await overtake(elsewhere)
        await asyncio.sleep(0)
        here.overtaken(KEY, told[0], lambda: Asked.of(asking("Tell me")))
        with pytest.raises(Superseded):
            await older

    asyncio.run(asyncio.wait_for(scene(), 5))
