"""Tokens are estimated until a vocabulary is there."""

import asyncio
import threading
from typing import Any

from filters.base import Context
from filters.message import Message
from filters.tokens import in_text
from filters.trim_history import TrimHistory
from proxy.memory.token_scale import TokenCounter


class Words:
    """A vocabulary of words; it counts how often it is asked."""

    def __init__(self) -> None:
        self.asked = 0

    def encode_ordinary(self, text: str) -> list[str]:
        self.asked += 1
        return text.split()


def test_the_estimate_holds_until_the_vocabulary_is_there_and_each_text_is_counted_once() -> None:
    words, wait = Words(), threading.Event()

    def load() -> Any:
        wait.wait(5)
        return words

    async def run() -> TokenCounter:
        exact = TokenCounter(load)
        task = asyncio.create_task(exact.load())
        await asyncio.sleep(0.01)
        assert exact.count is in_text
        wait.set()
        await task
        return exact

    exact = asyncio.run(run())
    assert [exact.count("three little words") for _ in range(3)] == [3, 3, 3]
    assert words.asked == 1


def test_where_it_cannot_be_had_the_estimate_stays() -> None:
    def load() -> Any:
        raise ModuleNotFoundError("tiktoken")

    exact = TokenCounter(load)
    asyncio.run(exact.load())
    assert exact.count is in_text


def test_trim_history_counts_by_what_it_is_given() -> None:
    said = [Message(role="user", content=f"{n} " + "x" * 200) for n in range(6)]
    step = TrimHistory(max_tokens=50, to=0.5)
    exactly = Context(now=0.0, count=lambda text: len(text.split()))
    assert len(step.apply(said, exactly)) == 6
    assert len(step.apply(said, Context(now=0.0))) == 1
