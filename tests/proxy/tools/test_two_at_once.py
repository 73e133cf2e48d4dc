"""Two upstreams that are asked at once: one calls tools, and one answers."""

import asyncio

import pytest

from proxy.answer.transcript import transcript
from proxy.errors import UpstreamTimeout
from proxy.tools.memory_tools import Offer
from proxy.tools.rounds import Dialogue, Rounds, Tools
from tests.peers.fake_upstream import stream_of
from tests.rounds import DUE, OWN, Answer, Kit, calling

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


class Slow(Kit):
    """Takes until it is let go."""

    def __init__(self):
        super().__init__()
        self.asked = asyncio.Event()
        self.free = asyncio.Event()

    async def run(self, name, arguments, until):
        self.asked.set()
        await self.free.wait()
        return await super().run(name, arguments, until)


class Race:
    """One dialogue, and answers that were asked for before anything was said in it."""

    def __init__(self, kit):
        self.kit = kit
        self.dialogue = Dialogue(Tools(Offer({}, OWN, {}, {}), kit, 4))
        self.again = []

    def runner(self, first, then="Ann."):
        async def again(due):
            self.again.append(list(self.dialogue.messages))
            return Answer(stream_of(then))

        return Rounds(Answer(first), again, self.dialogue, 0, DUE)


async def transcript_of(rounds):
    seen = b""
    while data := await rounds.read():
        seen += data
    return transcript(seen)


async def assert_silent(rounds):
    """It says nothing any more, and has nothing done, for as long as it has."""
    rounds.due(asyncio.get_running_loop().time() + 0.05)
    with pytest.raises(UpstreamTimeout):
        await rounds.read()


async def test_what_is_being_carried_out_for_one_is_waited_for_by_the_other():
    race = Race(Slow())
    first, second = (
        race.runner(calling("memory_recall"), "One."),
        race.runner(calling("memory_store"), "Two."),
    )
    ahead = asyncio.create_task(transcript_of(first))
    await race.kit.asked.wait()
    behind = asyncio.create_task(transcript_of(second))
    for _ in range(10):
        await asyncio.sleep(0)
    assert not behind.done() and not race.again
    race.kit.free.set()
    assert [(await each).text for each in (ahead, behind)] == ["One.", "Two."]
    assert [name for name, _ in race.kit.done] == ["memory_recall"]
    assert len(race.again) == 2
    assert race.again[0] == race.again[1] == race.dialogue.messages


async def test_words_that_know_nothing_of_it_are_not_said():
    race = Race(Kit())
    first, second = race.runner(calling("memory_recall"), "One."), race.runner(stream_of("What?"), "Two.")
    assert (await transcript_of(first)).text == "One."
    assert (await transcript_of(second)).text == "Two."


async def test_beside_the_clients_own_calls_one_carries_out():
    race = Race(Kit())
    both = calling("memory_store", "weather")
    first, second = race.runner(both), race.runner(both, "Two.")
    [call] = (await transcript_of(first)).tool_calls
    assert call["function"]["name"] == "weather"
    await assert_silent(second)
    assert [name for name, _ in race.kit.done] == ["memory_store"]
    assert race.again == []


async def test_once_one_is_the_clients_the_other_carries_nothing_out():
    race = Race(Kit())
    first = race.runner(stream_of("One."))
    second = race.runner(calling("memory_store"), "Two.")
    race.dialogue.assign_to(first)
    await assert_silent(second)
    assert (race.kit.done, race.again) == ([], [])
    assert (await transcript_of(first)).text == "One."


async def test_whoever_is_the_clients_goes_on_whatever_the_other_has_done():
    race = Race(Kit())
    first, second = race.runner(stream_of("One.")), race.runner(calling("memory_store"), "Two.")
    await transcript_of(second)
    race.dialogue.assign_to(first)
    assert (await transcript_of(first)).text == "One."
    assert len(race.again) == 1
