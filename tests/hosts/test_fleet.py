"""Calls whose turns are answered by any of three hosts, whose clocks are ten seconds apart."""

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.hosts.fleet import FRONT, WITHOUT_MEMORY, Fleet
from tests.peers.postgres_server import PostgresServer
from tests.waiting import until

SKEWS = (-5.0, 0.0, 5.0)
Start = Callable[[str], Fleet]


@pytest.fixture
def start(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Start]:
    started: list[Fleet] = []

    def start(store: str) -> Fleet:
        if store == "postgresql":
            server: PostgresServer = request.getfixturevalue("postgres")
            store = server.url(asyncio.run(server.new_schema()))
        fleet = Fleet(tmp_path, SKEWS, store)
        started.append(fleet.__enter__())
        return fleet

    yield start
    for fleet in started:
        fleet.__exit__()


class Call:
    """A call of so many turns; each shows the last ``window`` messages, as its caller heard them.

    A turn that fails is asked once more, as voice platforms do, and stands in ``failed``; one whose host
    could not read the session stands in ``without_memory``.
    """

    def __init__(self, fleet: Fleet, name: str, turns: int, pause: float, window: int) -> None:
        self.fleet, self.name, self.turns, self.pause, self.window = fleet, name, turns, pause, window
        self.failed: list[str] = []
        self.without_memory: set[int] = set()
        self.heard: list[dict[str, str]] = []

    def words(self, turn: int) -> str:
        return f"{self.name}: this is what I say in turn {turn}."

    def make(self) -> None:
        with self.fleet.network.on(FRONT):
            for turn in range(self.turns):
                self.heard.append({"role": "user", "content": self.words(turn)})
                why = self._ask(turn)
                if why:
                    self.failed.append(f"{self.name}, turn {turn}: {why}")
                    if again := self._ask(turn):
                        self.failed.append(f"{self.name}, turn {turn} again: {again}")
                self.heard.append({"role": "assistant", "content": f"Heard {self.words(turn)}"})
                time.sleep(self.pause)

    def _ask(self, turn: int) -> str:
        """Why there is no answer."""
        why = self.fleet.turn(self.name, self.heard[-self.window :])
        if why != WITHOUT_MEMORY:
            return why
        self.without_memory.add(turn)
        return ""

    def faults(self) -> Iterator[str]:
        """Returns the errors in a call's prompts, and in the memory of it."""
        said = [message["content"] for message in self.heard]
        for turn in range(self.turns):
            prompt = self.fleet.model.prompts.get(self.words(turn), [])
            whole = said[: 2 * turn + 1]
            if self.pause and turn not in self.without_memory and prompt != whole:
                yield f"{self.name}, turn {turn} was shown {prompt} and not {whole}"
            if prompt != [one for one in whole if one in prompt]:
                yield f"{self.name}, turn {turn}: out of order, or doubled: {prompt}"
        until(lambda: self.fleet.remembered(self.name) == said)
        if (remembered := self.fleet.remembered(self.name)) != said:
            yield f"{self.name}: {remembered} is remembered and not {said}"


def make(calls: list[Call], meanwhile: Callable[[], None] = lambda: None) -> list[str]:
    """All calls at once; what is wrong with them."""
    with ThreadPoolExecutor(len(calls) + 1) as pool:
        made = [pool.submit(call.make) for call in calls]
        meanwhile()
        for one in made:
            one.result()
    return [fault for call in calls for fault in call.faults()]


@pytest.mark.parametrize("store", ["redis", pytest.param("cluster", marks=pytest.mark.long)])
def test_calls_go_on_exactly_whichever_host_answers_and_when_one_is_killed(start: Start, store: str) -> None:
    fleet = start(store)
    calls = [Call(fleet, f"call {i}", 6, 0.2, (1, 5, 100)[i % 3]) for i in range(9)]

    def kill() -> None:
        assert until(lambda: len(fleet.model.prompts) > 9, 60)
        fleet.hosts[1].kill()

    assert make(calls, kill) == []
    # The streams of the host that was killed end with it, and no other.
    assert all(len(call.failed) <= 1 for call in calls), [call.failed for call in calls]


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("pause", [0.0, 0.2, 1.0])
@pytest.mark.parametrize("store", ["redis", "cluster", "postgresql"])
def test_thirty_calls_of_twenty_turns(start: Start, store: str, pause: float) -> None:
    fleet = start(store)
    calls = [Call(fleet, f"call {i}", 20, pause, (1, 5, 100)[i % 3]) for i in range(30)]
    assert make(calls) == []
    assert [call.failed for call in calls if call.failed] == []
    assert not any(call.without_memory for call in calls)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("store", ["redis", "cluster"])
def test_a_rolling_restart_costs_no_turn(start: Start, store: str) -> None:
    fleet = start(store)
    calls = [Call(fleet, f"call {i}", 60, 0.3, (1, 5, 100)[i % 3]) for i in range(10)]

    def restart() -> None:
        for host in fleet.hosts:
            host.client.close()
            assert host.stop() == 0
            host.begin()
            assert until(host.is_up, 100), host.log

    assert make(calls, restart) == []
    assert [call.failed for call in calls if call.failed] == []
    assert not any(call.without_memory for call in calls)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("store", ["sentinel", "cluster"])
def test_the_loss_of_a_primary_costs_no_turn(start: Start, store: str) -> None:
    fleet = start(store)
    calls = [Call(fleet, f"call {i}", 30, 0.3, (1, 5, 100)[i % 3]) for i in range(9)]

    def lose() -> None:
        assert until(lambda: len(fleet.model.prompts) > 60, 100)
        fleet.stores[0].kill()

    assert make(calls, lose) == []
    assert [call.failed for call in calls if call.failed] == []
    # Until the replica has taken over, calls go on without what was said before. All of it is stored.
    assert all(len(call.without_memory) < 15 for call in calls), [call.without_memory for call in calls]
    assert not any(max(call.without_memory, default=0) > 25 for call in calls)
