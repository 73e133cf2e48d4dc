"""People who talk: most listen, some interrupt with newer words, some hang up in the middle of an answer."""

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from bench.soak.ledger import Ledger, Talk, Turn, mark
from bench.soak.phone import Heard, Phone

MODEL = "paced-50-25"
_SYSTEM = {"role": "system", "content": "You are a helpful voice assistant. Keep answers short. " * 4}
_HANGS_UP, _INTERRUPTS = 0.1, 0.1
_SHORTEST, _LONGEST = 4, 40
_SHOWN = 12


class First(NamedTuple):
    """How long one caller waited for the first token, in seconds, and when."""

    at: float
    waited: float


class Crowd:
    """All callers, and what became of their turns. ``pause`` is their mean pause between turns in seconds."""

    def __init__(self, port: int, ledger: Ledger, *, pause: float, seed: int = 1) -> None:
        self.outcomes: Counter[str] = Counter()
        self.firsts: list[First] = []
        self.degraded: list[float] = []
        self.talking = 0
        self._port = port
        self._ledger = ledger
        self._pause = pause
        self._dice = random.Random(seed)
        self._numbers = 0

    async def talk(self, callers: int, until: float) -> None:
        """That many callers, who come in one after the other, until that moment."""
        late = min(10.0, (until - time.monotonic()) / 10)
        await asyncio.gather(*(self._caller(until, late * place / callers) for place in range(callers)))

    async def _caller(self, until: float, late: float) -> None:
        await asyncio.sleep(late)
        self.talking += 1
        while time.monotonic() < until:
            self._numbers += 1
            await self._call(f"soak-{self._numbers}", until)
        self.talking -= 1

    async def _call(self, name: str, until: float) -> None:
        """One call; half of the engines show all of it that is recent, and half the newest words alone."""
        phone, turns, window = Phone(self._port), list[Turn](), list[dict[str, Any]]()
        shown = _SHOWN if self._dice.random() < 0.5 else 0
        for number in range(1, self._dice.randint(_SHORTEST, _LONGEST) + 1):
            words = f"Question {number} of {name}, in as many words as people use"

            posted = partial(_body, [_SYSTEM, *window[len(window) - shown :]], number)
            turn, heard = await self._turn(phone, name, words, posted)
            turns.append(turn)
            window += _replayed(words, heard, number)
            if time.monotonic() >= until:
                break
            await asyncio.sleep(self._dice.uniform(0.3, 1.7) * self._pause)
        phone.hang_up()
        self._ledger.add(Talk(name, turns, time.monotonic()))

    async def _turn(
        self, phone: Phone, name: str, words: str, posted: Callable[[str], bytes]
    ) -> tuple[Turn, Heard]:
        dice, withdrawn = self._dice.random(), ""
        if dice < _INTERRUPTS:
            withdrawn = words[: len(words) // 2]
            other = await self._second_line()
            early = asyncio.create_task(self._asked(other, posted(withdrawn), name))
            await asyncio.sleep(self._dice.uniform(0.15, 0.6))
            heard = await self._asked(phone, posted(words), name)
            self.outcomes[f"superseded: {(await early).outcome}"] += 1
            other.hang_up()
        else:
            patience = self._dice.uniform(0.01, 1.2) if dice > 1 - _HANGS_UP else None
            heard = await self._asked(phone, posted(words), name, patience)
        self.outcomes[heard.outcome] += 1
        whole = mark(heard.text) if heard.outcome == "whole" else None
        return Turn(words, whole, bool(heard.text), withdrawn), heard

    async def _second_line(self) -> Phone:
        """A line that is open already: what takes its time to be opened could be overtaken by newer words."""
        other = Phone(self._port)
        with suppress(OSError):
            await other.dial()
        return other

    async def _asked(self, phone: Phone, body: bytes, name: str, patience: float | None = None) -> Heard:
        try:
            heard = await phone.ask(body, name, patience)
        except OSError as error:
            return Heard(type(error).__name__)
        now = time.monotonic()
        if heard.first is not None:
            self.firsts.append(First(now, heard.first))
        if heard.degraded:
            self.degraded.append(now)
        return heard


def _replayed(words: str, heard: Heard, number: int) -> list[dict[str, Any]]:
    """A turn as the engine shows it later: what was said, and what was heard of the answer."""
    said = [{"role": "user", "content": words, "turn_id": number}]
    if not heard.text:
        return said
    cut = {"metadata": {"interrupted": True}} if heard.outcome != "whole" else {}
    return [*said, {"role": "assistant", "content": heard.text, "turn_id": number, **cut}]


def _body(before: list[dict[str, Any]], number: int, words: str) -> bytes:
    newest = {"role": "user", "content": words, "turn_id": number}
    asked = {"model": MODEL, "stream": True, "turn_id": number, "messages": [*before, newest]}
    return json.dumps(asked).encode()
