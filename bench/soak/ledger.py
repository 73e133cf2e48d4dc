"""Compares what callers said and heard to the end with what is stored."""

import asyncio
import json
import time
import urllib.error
import urllib.request
from collections import Counter, deque
from collections.abc import Sequence
from typing import Any, NamedTuple

_PATIENCE = 30.0
_PAUSE = 0.5


class Turn(NamedTuple):
    """One turn of a call. ``answer`` is a hash of the answer's text, if it was received completely."""

    words: str
    answer: int | None
    was_heard: bool
    withdrawn: str = ""

    def lacking(self, stored: Counter[tuple[str, str]], answers: set[int]) -> list[str]:
        """Returns what is missing or wrong in the stored turn."""
        found = []
        times = stored["user", self.words]
        if times > 1 or (self.was_heard and not times):
            found.append(f"{self.words!r} is held {times} times")
        if self.answer is not None and self.answer not in answers:
            found.append(f"the answer to {self.words!r} is not held")
        if self.withdrawn and stored["user", self.withdrawn]:
            found.append(f"{self.withdrawn!r} was withdrawn, and is held")
        return found


class Talk(NamedTuple):
    """One finished call, and the time of its end."""

    session: str
    turns: Sequence[Turn]
    ended: float

    def lacking(self, contents: Sequence[dict[str, Any]]) -> list[str]:
        """Returns what is missing or wrong in the stored call."""
        stored = Counter((entry["role"], str(entry.get("content"))) for entry in contents)
        answers = {mark(text) for role, text in stored if role == "assistant"}
        return [fault for turn in self.turns for fault in turn.lacking(stored, answers)]


def mark(text: str) -> int:
    """Returns a short hash of a text."""
    return hash(text.strip())


class Ledger:
    """Checks each call after its end, and again at the end of the soak if it must still be stored."""

    def __init__(self, port: int, *, remembered: float) -> None:
        self.calls = 0
        self.turns = 0
        self.calls_again = 0
        self.slowest = 0.0
        self.faults: list[str] = []
        self._port = port
        self._remembered = remembered
        self._checks: set[asyncio.Task[None]] = set()
        self._checked: deque[Talk] = deque()

    def add(self, talk: Talk) -> None:
        """Adds a finished call."""
        self.calls += 1
        self.turns += sum(turn.was_heard for turn in talk.turns)
        check = asyncio.create_task(self._check(talk))
        self._checks.add(check)
        check.add_done_callback(self._checks.discard)

    async def checked(self) -> None:
        """Waits until all finished calls were checked."""
        await asyncio.gather(*self._checks)

    async def check_again(self) -> None:
        """Checks again all calls that must still be stored."""
        for talk in self._checked:
            if time.monotonic() - talk.ended < self._remembered:
                self.faults += [f"{fault}, at the end" for fault in await asyncio.to_thread(self._look, talk)]
                self.calls_again += 1

    async def _check(self, talk: Talk) -> None:
        """Checks a call; waits while memory is away."""
        while faults := await asyncio.to_thread(self._look, talk):
            if time.monotonic() - talk.ended > _PATIENCE:
                self.faults += faults
                break
            await asyncio.sleep(_PAUSE)
        else:
            self.slowest = max(self.slowest, time.monotonic() - talk.ended)
            self._checked.append(talk)
        while self._checked and time.monotonic() - self._checked[0].ended > self._remembered:
            self._checked.popleft()

    def _look(self, talk: Talk) -> list[str]:
        url = f"http://127.0.0.1:{self._port}/v1/memory/sessions/{talk.session}"
        try:
            with urllib.request.urlopen(url, timeout=10) as got:
                return talk.lacking(json.load(got)["contents"])
        except urllib.error.HTTPError as error:
            if error.code == 404 and not any(turn.was_heard for turn in talk.turns):
                return []
            return [f"{talk.session} is answered with {error.code}"]
        except OSError as error:
            return [f"{talk.session} is not answered: {type(error).__name__}"]
