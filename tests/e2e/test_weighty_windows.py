"""Windows of very many messages delay their own call only."""

import asyncio
import logging
from importlib import import_module
from typing import Any

import pytest

from tests.proxy_server import ProxyServer
from tests.waiting import until

WINDOW = [{"role": ("user", "assistant")[i % 2], "content": f"Line {i}."} for i in range(601)]


@pytest.mark.parametrize(
    "step", ["proxy.memory.view.prompt_view", "proxy.turn.chain.run", "proxy.memory.recorder.apply_turn"]
)
def test_a_long_window_holds_up_nobody_elses_call(
    agora: ProxyServer, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    module, _, name = step.rpartition(".")
    work, others = getattr(import_module(module), name), []

    def worked(*given: Any, **named: Any) -> Any:
        """The same, once the loop has gone on with something else."""
        if not others:
            others.append(agora.run(asyncio.sleep(0, "went on"), within=2))
        return work(*given, **named)

    monkeypatch.setattr(step, worked)
    assert agora.chat(WINDOW, headers={"X-Session-Id": "long"}).status_code == 200
    assert until(lambda: others == ["went on"], 3)


def in_turn(number: int, *lines: str) -> list[dict[str, Any]]:
    """A turn of an engine that numbers them: words of the user, and as many lines of the agent."""
    said = [{"role": "user", "content": f"Question {number}."}]
    said += [{"role": "assistant", "content": line} for line in lines]
    return [{**message, "turn_id": number, "timestamp": 1000 * number + i} for i, message in enumerate(said)]


def test_a_turn_that_never_ends_is_held_up_to_a_bound(
    agora: ProxyServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def count_messages() -> int:
        found = agora.client.get("/v1/memory/sessions/long").json()
        return len(found.get("contents", []))

    def asked(*turns: list[dict[str, Any]]) -> tuple[int, str | None]:
        """The status, and what the answer's head says was left out."""
        window = [message for turn in turns for message in turn]
        got = agora.chat(window, headers={"X-Session-Id": "long"})
        return got.status_code, got.headers.get("x-turnkeeper-degraded")

    monkeypatch.setattr("proxy.memory.turn_record._MAX_ENTRIES", 100)
    first = in_turn(1, *(f"Line {i} of many." for i in range(90)))
    assert asked([*first, *in_turn(1)[:1]]) == (200, None)
    assert until(count_messages)
    before = count_messages()
    with caplog.at_level(logging.ERROR, "turnkeeper"):
        more = in_turn(1, *(f"Further line {i}." for i in range(90)))
        assert asked([*first, *more[1:], *in_turn(1)[:1]]) == (200, "memory")
        assert until(lambda: "one turn of its session has more than 100 messages" in caplog.text)
    assert count_messages() == before
    assert "turnkeeper_lost_turns_total 1.0" in agora.client.get("/metrics").text
    assert asked(first, in_turn(2)) == (200, None)
    assert until(lambda: count_messages() not in {0, before})


def test_whatever_fails_in_telling_that_a_turn_is_too_long_the_caller_gets_an_answer(
    agora: ProxyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: Any, **__: Any) -> bool:
        raise ZeroDivisionError

    monkeypatch.setattr("proxy.memory.turn_record._MAX_ENTRIES", 100)
    monkeypatch.setattr("proxy.turn.context.overgrows", failing)
    got = agora.chat(WINDOW, headers={"X-Session-Id": "long"})
    assert (got.status_code, got.headers["x-turnkeeper-degraded"]) == (200, "memory")
