"""A long call over the real proxy: what an engine replays, a model that says what it saw, and what must hold.

Each message bears a mark of its own (``user17``, ``answer17``). Notes tell marks as ranges: ``u0-16 a0-16``.
"""

import json
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from filters.message import Message
from filters.tokens import in_message
from tests.peers.fake_upstream import Received, Step, answer, completion, sse, stream_of

SYSTEM = {"role": "system", "content": "You are the voice of a travel agency. Keep to what you know. " * 4}
_MARK = re.compile(r"\b(user|answer)(\d+)\b")
_MARK_OR_RANGE = re.compile(r"\b(?:(user|answer)(\d+)|([ua])(\d+)-(\d+))\b")
_TALK = "trains to the coast leave early and the hotel by the harbour has a room with a view of the lake"
_WORDS = _TALK.split()
CONFIG = """
memory:
  sessions: "${MEMORY_URL}"
  deadline: 2s
  window: {max_messages: MAX, keep_messages: KEEP}
  summaries: {upstream: main, model: notes, max: 10, timeout: 5s}
upstreams: {main: {base_url: "${UPSTREAM_BASE_URL}"}}
pipelines:
  default:
    upstreams: [main]
    request:
      - repair_history
      - restore_history
      - inject_summaries
      - drop_messages: {sources: [silence, llm_failure]}
      - restore_interrupted: {show: both}
"""


def config(most: int, keep: int, text: str = CONFIG) -> str:
    return text.replace("MAX", str(most)).replace("KEEP", str(keep))


def marks_in_order(messages: Iterable[dict[str, Any]]) -> Iterator[tuple[str, int]]:
    """Which messages a prompt tells of, one after the other."""
    for message in messages:
        for name, number, kind, first, last in _MARK_OR_RANGE.findall(message.get("content") or ""):
            if name:
                yield name, int(number)
            else:
                yield from (
                    ("user" if kind == "u" else "answer", i) for i in range(int(first), int(last) + 1)
                )


def marks(messages: Iterable[dict[str, Any]]) -> Counter[tuple[str, int]]:
    """Which messages a prompt tells of, and how often."""
    return Counter(marks_in_order(messages))


def ranges(found: Iterable[tuple[str, int]]) -> str:
    """Marks as ranges."""
    told = []
    for kind in ("user", "answer"):
        numbers = sorted(n for k, n in found if k == kind)
        starts = [n for before, n in pairwise([-2, *numbers]) if n != before + 1]
        ends = [n for n, after in pairwise([*numbers, -2]) if after != n + 1]
        told += [f"{kind[0]}{a}-{b}" for a, b in zip(starts, ends, strict=True)]
    return " ".join(told)


def is_notes(request: Received) -> bool:
    """Whether this asks for notes."""
    return request.method == "POST" and request.json["model"] == "notes"


def noted(request: Received, more: str = "") -> Iterable[Step]:
    """Good notes: every message of the transcript, once, and ``more``."""
    data = request.json["messages"][-1]["content"]
    inner = re.search(r"<(transcript|notes)>\n(.*)\n</\1>", data, re.DOTALL)
    assert inner, data
    return answer(completion(f"So far: {ranges(marks([{'content': inner[2]}]))}. {more}"))


def model(notes: Callable[[Received], Iterable[Step]] = noted) -> Callable[[Received], Iterable[Step]]:
    """A model that answers the newest words of the user, and writes notes as told."""

    def script(request: Received) -> Iterable[Step]:
        if is_notes(request):
            return notes(request)
        newest = next(m for m in reversed(request.json["messages"]) if m["role"] == "user")
        number = int(_MARK.findall(newest["content"])[-1][1])
        return sse(stream_of(f"answer{number} says that ", sentence(number + 7)))

    return script


def sentence(number: int) -> str:
    return " ".join(_WORDS[(number * 3 + i * (1 + number % 5)) % len(_WORDS)] for i in range(14)) + "."


@dataclass
class LongCall:
    """A call that grows turn by turn; the engine replays the newest ``size`` messages of it."""

    proxy: Any
    upstream: Any
    numbered: bool = True
    size: int = 8
    session: str = "long"
    user: str = ""
    cut_every: int = 0
    start: int = 1_700_000_000
    first: int = 0
    lines: list[dict[str, Any]] = field(default_factory=list)
    prompts: list[list[dict[str, Any]]] = field(default_factory=list)
    degraded: list[str] = field(default_factory=list)
    number: int = 0

    def turn(self) -> list[dict[str, Any]]:
        """One turn; what the model was shown."""
        n, self.number = self.first + self.number, self.number + 1
        self.lines.append(self._line("user", f"user{n} asks whether {sentence(n)}", n))
        window = self.lines[-self.size :]
        asked = len(self.upstream.requests)
        headers = {"X-Session-Id": self.session, **({"X-User-Id": self.user} if self.user else {})}
        got = self.proxy.chat([SYSTEM, *window], headers=headers, stream=True)
        assert got.status_code == 200, got.text
        self.degraded += got.headers.get_list("x-turnkeeper-degraded")
        text = stream_text(got.text)
        if self.cut_every and n % self.cut_every == self.cut_every - 1:
            text = " ".join(text.split()[:6])
        self.lines.append(self._line("assistant", text, n))
        prompt = [r.json for r in list(self.upstream.requests)[asked:] if not is_notes(r)][-1]["messages"]
        self.prompts.append(prompt)
        return prompt

    def _line(self, role: str, text: str, n: int) -> dict[str, Any]:
        told = {"turn_id": n - self.first, "timestamp": self.start + 10 * n} if self.numbered else {}
        return {"role": role, "content": text, **told}

    def check(self, prompt: Sequence[dict[str, Any]], *, summaries: bool = True) -> None:
        """Each earlier message once; without ``summaries`` that tell all, at the most once."""
        n = self.number - 1
        expected = {(kind, i) for kind in ("user", "answer") for i in range(n)} | {("user", n)}
        found = marks(prompt)
        twice = {mark for mark, count in found.items() if count > 1}
        assert not twice, (n, sorted(twice))
        assert set(found) <= expected
        if summaries:
            assert set(found) == expected, (n, sorted(expected - set(found)))


def stream_text(stream: str) -> str:
    """Returns the text of a stream."""
    chunks = [json.loads(line[6:]) for line in stream.split("\n") if line.startswith("data: {")]
    return "".join(c["delta"].get("content") or "" for chunk in chunks for c in chunk["choices"])


def settle(proxy: Any, within: float = 20.0) -> None:
    """Waits until all turns are written, and nothing is under way in the background."""
    assert settled(proxy, within), f"after {within:g} s something is still under way"


def settled(proxy: Any, within: float) -> bool:
    """Whether it comes to that in time."""
    end = time.monotonic() + within
    while not (done := proxy.run(_at_rest(proxy.app))) and time.monotonic() < end:
        time.sleep(0.002)
    return bool(done)


async def _at_rest(app: Any) -> bool:
    """The last byte of an answer overtakes what is written down of it; until then its turn is in flight."""
    now = app.gauges()
    worker = app.runtime.worker
    return not (now.in_flight or now.queued or worker._tasks or worker._side_tasks)


def tokens(prompt: Sequence[dict[str, Any]]) -> int:
    return sum(in_message(Message(role=m["role"], content=m.get("content"))) for m in prompt)


def unchanged(before: Sequence[dict[str, Any]], after: Sequence[dict[str, Any]]) -> int:
    """How many tokens of a prompt stand in a prefix that the prompt before had as well."""
    total = 0
    for old, new in zip(before, after, strict=False):
        if old != new:
            same = [a == b for a, b in zip(old.get("content") or "", new.get("content") or "", strict=False)]
            length = next((i for i, s in enumerate(same) if not s), len(same))
            return total + tokens([{**new, "content": (new.get("content") or "")[:length]}])
        total += tokens([new])
    return total


def share(prompts: Sequence[Sequence[dict[str, Any]]]) -> float:
    """Which share of all prompt tokens stood in a prefix unchanged since the turn before."""
    kept = sum(unchanged(a, b) for a, b in pairwise(prompts))
    return kept / sum(map(tokens, prompts[1:]))
