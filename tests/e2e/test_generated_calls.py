"""Calls by all kinds of voice engines, from outside: what the model reads, and what memory has of them.

The laws stand in ``tests/voice_engine.py``.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from itertools import product
from pathlib import Path

import pytest

from tests.conftest import AGORA
from tests.e2e.conftest import Address
from tests.peers.fake_upstream import FakeUpstream
from tests.serving_process import LISTEN, ServingProcess
from tests.voice_engine import INTERRUPTIONS, NEWEST_ONLY, Habits, ScriptedCall, make_calls

WINDOWS = (NEWEST_ONLY, 6, 10, 20, None)
PAUSES = (0.0, 0.005, 0.02, 0.5)
SEEN_BY_OTHERS, HALF_A_SECOND = PAUSES[-2:]

FEW = [
    Habits(window, (i + j) % 2 == 0, INTERRUPTIONS[(i + j) % 3], pause)
    for i, window in enumerate(WINDOWS)
    for j, pause in enumerate(PAUSES)
]
"""Each window with each pause, each pause with each interruption, each interruption numbered and not."""

SHIPPED = AGORA.read_text().replace("deadline: 50ms", "deadline: 5s")
"""The shipped configuration, for which a slow machine is no fault of memory's."""


def with_window(most: int, keep: int) -> str:
    """The shipped configuration with another window.

    A call of no more than ``most`` turns never has twice as many messages. So, however far it is ahead of the
    model that writes summaries, no digest stands in for one, which would leave words out.
    """
    window = f"max_messages: {most}, keep_messages: {keep}"
    return SHIPPED.replace("max_messages: 60, keep_messages: 10", window)


FORGETFUL = f"""
{LISTEN}
upstreams: {{main: {{base_url: "${{UPSTREAM_BASE_URL}}"}}}}
pipelines: {{default: {{upstreams: [main]}}}}
"""

Serving = Callable[..., ServingProcess]
every_store = pytest.mark.parametrize("store", ["sqlite", "redis", "postgresql"])


@pytest.fixture
def serving(tmp_path: Path, upstream: FakeUpstream, address: Address) -> Iterator[Serving]:
    """Starts one server, with memory in a store of its own."""
    with ExitStack() as started:

        def start(config: str, store: str, *options: str) -> ServingProcess:
            environ = {"MEMORY_URL": address(store), "SUMMARY_MODEL": "notes", "HOST": "127.0.0.1"}
            environ |= {"UPSTREAM_BASE_URL": upstream.url, "TMPDIR": str(tmp_path)}
            return started.enter_context(ServingProcess(tmp_path, config, *options, **environ))

        yield start


def habits_at(*pauses: float) -> list[Habits]:
    return [Habits(*each) for each in product(WINDOWS, (False, True), INTERRUPTIONS, pauses)]


def calls(server: ServingProcess, habits: Iterable[Habits], turns: int) -> list[ScriptedCall]:
    return [
        ScriptedCall([server.port], f"{turns}-turns-{i}", each, turns=turns) for i, each in enumerate(habits)
    ]


def check(upstream: FakeUpstream, calls: list[ScriptedCall], *, at_once: int = 16) -> None:
    faults = make_calls(upstream, calls, at_once=at_once)
    assert not faults, "\n".join(faults)


def check_between_processes(
    upstream: FakeUpstream, ports: Sequence[int], habits: list[Habits], turns: int, *, at_once: int
) -> None:
    """What one process has answered the others see in the store, before the engine's pause is over.

    A machine may stand still for longer, but hardly in three tries.
    """
    for attempt in range(3):
        calls = [
            ScriptedCall(ports, f"{attempt}-{i}", each, turns=turns, reconnect=True)
            for i, each in enumerate(habits)
        ]
        if not (faults := make_calls(upstream, calls, at_once=at_once)):
            return
    pytest.fail("\n".join(faults))


@every_store
def test_each_turn_is_read_once_and_remembered_as_heard(
    serving: Serving, upstream: FakeUpstream, store: str
) -> None:
    server = serving(with_window(24, 8), store)
    quick = calls(server, [each for each in FEW if each.pause < HALF_A_SECOND], turns=24)
    slow = calls(server, [each for each in FEW if each.pause == HALF_A_SECOND], turns=15)
    check(upstream, [*slow, *quick])


@every_store
def test_it_holds_whichever_process_is_asked(serving: Serving, upstream: FakeUpstream, store: str) -> None:
    server = serving(with_window(24, 8), store, "--workers", "2")
    slow = [each for each in FEW if each.pause == HALF_A_SECOND]
    check_between_processes(upstream, [server.port], slow, 10, at_once=len(slow))


@pytest.mark.long
@pytest.mark.timeout(1800)
@every_store
def test_it_holds_in_long_calls(serving: Serving, upstream: FakeUpstream, store: str) -> None:
    slow = calls(serving(SHIPPED, store), habits_at(HALF_A_SECOND), turns=300)
    check(upstream, slow, at_once=len(slow))


@pytest.mark.long
@pytest.mark.timeout(1800)
@every_store
def test_it_holds_in_long_calls_without_a_pause(serving: Serving, upstream: FakeUpstream, store: str) -> None:
    server = serving(with_window(300, 20), store)
    quick = habits_at(*(pause for pause in PAUSES if pause < HALF_A_SECOND))
    check(upstream, calls(server, quick, turns=300))


@pytest.mark.long
@pytest.mark.timeout(1800)
@every_store
def test_it_holds_in_long_calls_whichever_process_is_asked(
    serving: Serving, upstream: FakeUpstream, store: str
) -> None:
    server = serving(SHIPPED, store, "--workers", "2")
    slow = habits_at(HALF_A_SECOND)
    check_between_processes(upstream, [server.port], slow, 300, at_once=len(slow))


@pytest.mark.long
@pytest.mark.timeout(1800)
@every_store
def test_what_one_process_has_answered_the_others_know_20_ms_later(
    serving: Serving, upstream: FakeUpstream, store: str
) -> None:
    """Through the store, where nothing else is written at the time."""
    server = serving(with_window(300, 20), store, "--workers", "2")
    for each in range(16):
        server.chat(session=f"each process has written once, {each}")
    quick = [each for each in FEW if each.pause == SEEN_BY_OTHERS]
    check_between_processes(upstream, [server.port], quick, 300, at_once=1)


def test_a_server_without_memory_keeps_none_of_the_laws(serving: Serving, upstream: FakeUpstream) -> None:
    """The laws of prompts are such as can be broken."""
    server = serving(FORGETFUL, "memory")
    few = [each for each in FEW if each.pause == 0]
    assert len(make_calls(upstream, calls(server, few, turns=8))) == len(few)
