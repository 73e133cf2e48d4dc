"""A voice engine that calls from outside, and knows what was said and how much of it was heard.

The laws of a call, whatever its engine replays and however soon the next turn comes:

1. Each turn reaches the model exactly once: word for word or inside a summary. What stands word for word is
   the end of the call, message by message; what the summaries tell is all that was before it, in order.
2. An answer is shown as far as it was heard, with a mark where it was cut. What was heard is what the engine
   replays; of an answer that it never replays, it is what was relayed until it hung up.
3. An answer of which nothing was heard is gone as soon as the engine's window spans it.
4. When the call is over, memory has what was heard: each message once, in order, with the same marks.
"""

import json
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import Any, Final

import httpx2

from tests.long_call import SYSTEM, is_notes, marks, marks_in_order, noted, sentence, stream_text
from tests.peers.fake_upstream import (
    HANG,
    HEAD,
    ROLE,
    FakeUpstream,
    Received,
    Step,
    chunk,
    delta,
    sse,
    stream_of,
)
from tests.peers.raw_client import RawClient, request, split
from tests.waiting import until

BY_MARK, BY_REPLAY, BY_HANG_UP = INTERRUPTIONS = "mark", "shorter replay", "hang-up"
NEWEST_ONLY: Final = 1
_START: Final = 1_700_000_000
_CUT_EVERY: Final = 4
_MOST_WORDS_OF_A_CUT: Final = 6


@dataclass(frozen=True)
class Habits:
    """What an engine does in a call.

    ``window`` is how many of its newest messages it sends (``None``: all), and ``pause`` how many seconds it
    waits behind an answer's last byte. That an answer was cut it tells as ``interruption`` says: by a mark in
    the metadata, by a shorter replay that has none, or in that it hangs up while the answer streams.
    """

    window: int | None
    numbered: bool
    interruption: str
    pause: float

    def __str__(self) -> str:
        window = "whole history" if self.window is None else f"window of {self.window}"
        numbers = "with" if self.numbered else "without"
        return f"{window}, {numbers} numbers, cut by {self.interruption}, {1000 * self.pause:g} ms"


@dataclass(frozen=True)
class Line:
    """A message of the call: all of its relayed text, and the heard part once a window has shown it."""

    role: str
    text: str
    turn: int
    spoken: str
    is_replayed: bool = False
    is_broken_off: bool = False

    @property
    def heard(self) -> str:
        """Returns the words that were heard, as far as the proxy can know."""
        return self.spoken if self.is_replayed else self.text

    @property
    def is_cut(self) -> bool:
        return self.is_broken_off or self.heard != self.text

    def as_prompted(self) -> dict[str, Any]:
        """The message that a model reads."""
        if not self.is_cut:
            return {"role": self.role, "content": self.text}
        rest = self.text.removeprefix(self.heard).strip()
        mark = f"[interrupted here; the caller did not hear: {rest}]" if rest else "[interrupted]"
        return {"role": self.role, "content": f"{self.heard} {mark}"}

    def as_remembered(self) -> dict[str, Any]:
        """What memory has of it."""
        remembered: dict[str, Any] = {"role": self.role, "content": self.heard}
        if self.is_cut:
            remembered["interrupted"] = True
        if self.heard != self.text:
            remembered["original"] = self.text
        return remembered


class ScriptedCall:
    """A call by an engine with its habits. What breaks a law is told in ``faults``.

    A turn whose answer says that memory was late is excused, and told in ``degraded``.

    The requests name the call as their model, so that the fake upstream knows which call it is asked in.
    Each goes to one of the servers at ``ports``. With ``reconnect``, each has a connection of its own, which
    any of several processes may take.
    """

    def __init__(
        self, ports: Sequence[int], name: str, habits: Habits, *, turns: int, reconnect: bool = False
    ) -> None:
        self.name = name
        self.habits = habits
        self.turns = turns
        self.faults: list[str] = []
        self.degraded: list[str] = []
        self._ports = ports
        self._random = Random(name)
        self._headers = {"X-Session-Id": name} | ({"connection": "close"} if reconnect else {})
        self._lines: list[Line] = []
        self._prompts: list[Sequence[dict[str, Any]]] = []
        self._asked = threading.Event()

    def run(self) -> None:
        """The whole call; where all prompts were right, memory is looked at, too."""
        with httpx2.Client(timeout=30) as client:
            for turn in range(self.turns):
                self._take_turn(client, turn)
                time.sleep(self.habits.pause)
            if not self.faults:
                self._check_memory(client)

    def answer(self, prompt: Sequence[dict[str, Any]]) -> Iterable[Step]:
        """What the model does when it is asked in this call."""
        self._prompts.append(prompt)
        turn = self._lines[-1].turn
        if not self._hangs_up(turn):
            yield from sse(stream_of(*_pieces(_answer(turn))))
            return
        yield HEAD
        yield chunk(ROLE)
        for piece in _pieces(self._relayed_text(turn)):
            yield chunk(delta(content=piece))
        self._asked.set()
        yield HANG

    # --- the engine

    def _take_turn(self, client: httpx2.Client, turn: int) -> None:
        asks = "Yes." if turn % 5 == 3 else f"user{turn} asks whether {sentence(turn)}"
        self._lines.append(Line("user", asks, turn, asks))
        body = self._body(turn)
        expected = [line for line in self._lines if line.heard]
        self._prompts.clear()
        ask = self._hang_up if self._hangs_up(turn) else partial(self._listen, client)
        if degraded := ask(body, turn):
            self.degraded.append(f"turn {turn}: {degraded}")
            return
        if len(self._prompts) != 1:
            self.faults.append(f"turn {turn}: the model was asked {len(self._prompts)} times")
        self.faults += [f"turn {turn}: {fault}" for one in self._prompts for fault in _faults(one, expected)]

    def _listen(self, client: httpx2.Client, body: Mapping[str, Any], turn: int) -> str:
        """Asks, and takes the whole answer; returns what it went without."""
        url = f"http://127.0.0.1:{self._port}/v1/chat/completions"
        got = client.post(url, json=body, headers=self._headers)
        assert got.status_code == 200, got.text
        self._lines.append(self._answer_line(turn, stream_text(got.text)))
        return got.headers.get("x-turnkeeper-degraded", "")

    def _hang_up(self, body: Mapping[str, Any], turn: int) -> str:
        """Asks, and leaves once all is relayed that is going to be; returns what the answer went without."""
        text = self._relayed_text(turn)
        self._asked.clear()
        with RawClient(self._port) as client:
            client.send(request(extra=f"X-Session-Id: {self.name}\r\n", **body))
            got = client.until(json.dumps(_pieces(text)[-1]).encode()) if text else b""
            assert self._asked.wait(30), f"turn {turn}: the model is not asked"
        if not text:
            return ""
        self._lines.append(replace(self._answer_line(turn, text), is_broken_off=True))
        return split(got)[1].get("x-turnkeeper-degraded", "")

    def _answer_line(self, turn: int, text: str) -> Line:
        """An answer as it was relayed, and how much of it is spoken until the caller breaks in."""
        count = _words_until_cut(turn)
        if count is None:
            return Line("assistant", text, turn, text)
        if self._hangs_up(turn) and count % 2:
            count //= 2  # what has come is not all spoken yet
        return Line("assistant", text, turn, _words(text, count))

    def _relayed_text(self, turn: int) -> str:
        """What comes of an answer before the engine hangs up; a turn without any of it has failed.

        Memory knows of a turn that failed only what a later window shows.
        """
        count = _words_until_cut(turn) or (1 if self.habits.window == NEWEST_ONLY else 0)
        return _words(_answer(turn), count)

    def _hangs_up(self, turn: int) -> bool:
        return self.habits.interruption == BY_HANG_UP and _words_until_cut(turn) is not None

    def _body(self, turn: int) -> dict[str, Any]:
        """The request of a turn; what its window shows is replayed from now on."""
        replays = [line for line in self._lines if line.role == "user" or line.spoken or self._marks]
        window = replays[-(self.habits.window or len(replays)) :]
        first = self._lines.index(window[0])
        self._lines[first:] = [replace(line, is_replayed=True) for line in self._lines[first:]]
        messages = [SYSTEM, *map(self._message, window)]
        numbers = {"turn_id": turn, "timestamp": _START + 10 * turn} if self.habits.numbered else {}
        return {"model": self.name, "stream": True, "messages": messages, **numbers}

    def _message(self, line: Line) -> dict[str, Any]:
        """A line as the engine replays it."""
        message: dict[str, Any] = {"role": line.role, "content": line.spoken}
        if self.habits.numbered:
            message |= {"turn_id": line.turn, "timestamp": _START + 10 * line.turn}
        if self._marks and line.spoken != line.text:
            cut = {"interrupted": True, "interrupt_timestamp": _START + 10 * line.turn + 5}
            message["metadata"] = {"source": "llm", "original": line.text, **cut}
        return message

    @property
    def _port(self) -> int:
        return self._random.choice(self._ports)

    @property
    def _marks(self) -> bool:
        return self.habits.interruption == BY_MARK

    # --- memory

    def _check_memory(self, client: httpx2.Client) -> None:
        """Once the last turn is written, memory has what was heard; no window has shown a failed one."""
        lines = self._lines if self._lines[-1].role == "assistant" else self._lines[:-1]
        expected = [line.as_remembered() for line in lines if line.heard]
        if not until(lambda: self._remembered(client) == expected):
            self.faults.append(f"in memory: {_difference(self._remembered(client), expected)}")

    def _remembered(self, client: httpx2.Client) -> list[dict[str, Any]]:
        got = client.get(f"http://127.0.0.1:{self._port}/v1/memory/sessions/{self.name}")
        return [_as_remembered(message) for message in got.json().get("contents", [])]


def make_calls(upstream: FakeUpstream, calls: Sequence[ScriptedCall], *, at_once: int = 16) -> list[str]:
    """All these calls, some at a time; of each that broke a law, how often, and how it did first."""
    named = {call.name: call for call in calls}

    def script(received: Received) -> Iterable[Step]:
        if is_notes(received):
            return noted(received)
        return named[received.json["model"]].answer(received.json["messages"])

    upstream.script = script
    with ThreadPoolExecutor(at_once) as pool:
        for one in [pool.submit(call.run) for call in calls]:
            one.result()
    degraded = [line for call in calls for line in call.degraded]
    assert len(degraded) <= sum(call.turns for call in calls) / 20, degraded
    return [f"{call.habits}: {len(call.faults)} times, {call.faults[0]}" for call in calls if call.faults]


def _answer(turn: int) -> str:
    return f"answer{turn} says that {sentence(turn + 7)}"


def _words_until_cut(turn: int) -> int | None:
    """How much of an answer the caller lets the agent say; ``None`` is all of it."""
    return turn // _CUT_EVERY % _MOST_WORDS_OF_A_CUT if turn % _CUT_EVERY == 1 else None


def _words(text: str, count: int | None) -> str:
    return " ".join(text.split()[:count])


def _pieces(text: str) -> list[str]:
    """As a model streams a text: word by word."""
    first, *others = text.split(" ")
    return [first, *(f" {word}" for word in others)] if first else []


def _faults(prompt: Sequence[dict[str, Any]], expected: Sequence[Line]) -> Iterable[str]:
    """What of the first three laws a prompt breaks."""
    lines = [line.as_prompted() for line in expected]
    verbatim = [message for message in prompt if message["role"] != "system"]
    before = len(lines) - len(verbatim)
    notes = list(marks_in_order(message for message in prompt if message["role"] == "system"))
    if before < 0 or verbatim != lines[before:] or Counter(notes) != marks(lines[:before]):
        yield _difference(prompt, lines)
    for role in ("user", "answer"):
        numbers = [number for kind, number in notes if kind == role]
        if numbers != sorted(numbers):
            yield f"summaries are not in order: {numbers}"


def _as_remembered(message: dict[str, Any]) -> dict[str, Any]:
    fields = message | (message.get("metadata") or {})
    return {name: fields[name] for name in ("role", "content", "interrupted", "original") if name in fields}


def _difference(got: Sequence[dict[str, Any]], expected: Sequence[dict[str, Any]]) -> str:
    """What is missing, or there twice, and the last message that differs."""
    missing, surplus = marks(expected) - marks(got), marks(got) - marks(expected)
    differences = [f"missing {sorted(missing)}"] if missing else []
    differences += [f"surplus {sorted(surplus)}"] if surplus else []
    verbatim = [message for message in got if message["role"] != "system"]
    pairs = zip(reversed(verbatim), reversed(expected), strict=False)
    differences += [f"{a} where {b} was expected" for a, b in pairs if a != b][:1]
    return "; ".join(differences)
