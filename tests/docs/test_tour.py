"""The tour follows a real turn: each function it names runs, in the order in which it names them."""

import re
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.called import Function, recorded
from tests.conftest import AGORA
from tests.documentation import ROOT
from tests.peers.fake_upstream import FakeUpstream
from tests.proxy_server import ProxyServer, unread_inbox
from tests.serving_process import at_rest
from tests.waiting import until

STEP = re.compile(r"^\d+\. `([\w/]+\.py)` · `([\w.<>]+)`: \S", re.MULTILINE)
STEPS = [(file, name) for file, name in STEP.findall((ROOT / "docs/tour.md").read_text())]


def test_the_tour_has_its_steps():
    numbered = re.findall(r"^(\d+)\. ", (ROOT / "docs/tour.md").read_text(), re.MULTILINE)
    assert [int(number) for number in numbered] == list(range(1, len(STEPS) + 1))
    assert len(STEPS) >= 25


def test_a_turn_runs_each_step_of_the_tour_in_its_order(tmp_path: Path):
    ran = [(function.file, function.name) for function in second_turn(tmp_path)]
    assert out_of_order(STEPS, ran) is None


def test_a_step_that_did_not_run_in_its_place_is_named():
    ran = [("a.py", "f"), ("a.py", "g"), ("b.py", "h")]
    assert out_of_order([("a.py", "f"), ("b.py", "h")], ran) is None
    assert out_of_order([("b.py", "h"), ("a.py", "g")], ran) == ("a.py", "g")
    assert out_of_order([("a.py", "gone")], ran) == ("a.py", "gone")


def out_of_order(steps: list[tuple[str, str]], ran: list[tuple[str, str]]) -> tuple[str, str] | None:
    """The first step that does not run behind those before it."""
    calls = iter(ran)
    return next((step for step in steps if step not in calls), None)


def second_turn(folder: Path) -> list[Function]:
    """Returns all functions in a turn of an Agora caller who has cut the answer before."""
    with ExitStack() as stack:
        model = stack.enter_context(FakeUpstream())
        calls = stack.enter_context(recorded())
        memory = f"sqlite:{folder / 'memory.db'}"
        inbox = stack.enter_context(unread_inbox())
        environ = {"MEMORY_URL": memory, "UPSTREAM_BASE_URL": model.url}
        server = stack.enter_context(ProxyServer(AGORA, environ, inbox))
        for turn in (1, 2):
            assert until(lambda: at_rest(server.client))
            calls.collect()
            server.chat(**request(turn)).raise_for_status()
        assert until(lambda: at_rest(server.client))
        return calls.collect()


def request(turn: int) -> dict[str, Any]:
    """What Agora posts; the first answer comes back as far as the caller let it be spoken."""
    system = {"role": "system", "content": "You are a helpful receptionist."}
    first = {"role": "user", "content": "Good morning!", "turn_id": 1, "metadata": {"source": "asr"}}
    cut = {"role": "assistant", "content": "Hello", "turn_id": 1, "metadata": {"source": "llm"}}
    second = {"role": "user", "content": "It is Miller.", "turn_id": 2, "metadata": {"source": "asr"}}
    messages = [system, first] if turn == 1 else [system, first, cut, second]
    return {"messages": messages, "stream": True, "channel": "room-1", "user": "ann", "turn_id": turn}
