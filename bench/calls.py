"""Counts the Python calls of a turn on the thread that serves it, which a busy machine does not change.

python -m bench.calls [CONFIG] [--list KIND] [--memory URL]

A server runs in a thread of this process, with a fake model that sends each chunk after the former one was
read, so that each is read alone. As under ``serve``, each turn is logged, and another process, which is not
counted, archives and runs jobs. A caller sends windows in Agora's shape, each after all work of the turn
before. The results are medians of several turns, without the calls of an idle server.
"""

import argparse
import asyncio
import itertools
import os
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from proxy.observe.log import logging_to
from tests.peers.fake_upstream import (
    DONE,
    END,
    HEAD,
    ROLE,
    FakeUpstream,
    Received,
    Step,
    answer,
    chunk,
    completion,
    delta,
    event,
)
from tests.proxy_server import ProxyServer, unread_inbox
from tests.waiting import until

ROOT = Path(__file__).parents[1]
CHUNKS, MORE_CHUNKS = 8, 40
WINDOW = 24
"""The number of messages of the conversation in a window, without the system message."""
LATE, VERY_LATE = 20, 800
"""Turns of a session, by number."""
_MEASURED = 5
_SETTLED = 0.5
"""Seconds after which a server has passed on all data of a turn."""

Calls = Counter[CodeType]


class CallCounter:
    """Counts the Python calls on a server's main thread, turn by turn."""

    def __init__(self, server: ProxyServer) -> None:
        self._server = server
        self._calls: Calls = Counter()

    def of(self, turn: Callable[[], object]) -> Calls:
        """Returns the calls of one turn, including those after its answer."""
        self._calls.clear()
        self._server.run(self._profile(self._count))
        turn()
        until(lambda: not self._server.app.gauges().queued)
        self._server.run(asyncio.sleep(_SETTLED))
        self._server.run(self._profile(None))
        return self._calls.copy()

    def typical(self, turn: Callable[[], object]) -> Calls:
        """Returns the calls of the turn with the median number of them."""
        turns = sorted((self.of(turn) for _ in range(_MEASURED)), key=Counter.total)
        return turns[_MEASURED // 2]

    async def _profile(self, profile: Callable[[FrameType, str, object], None] | None) -> None:
        sys.setprofile(profile)

    def _count(self, frame: FrameType, event: str, _arg: object) -> None:
        if event == "call":
            self._calls[frame.f_code] += 1


class PacedModel:
    """Answers in the number of chunks that the model's name states."""

    def __init__(self) -> None:
        self._pieces_read = threading.Semaphore(0)

    def piece_read(self) -> None:
        """Notes that the caller has read the last piece."""
        self._pieces_read.release()

    def script(self, request: Received) -> Iterator[Step]:
        """The steps of one answer."""
        if request.method == "GET":
            yield from answer({"object": "list", "data": []})
            return
        words = words_of(int(request.json["model"].partition("-")[2]))
        if not request.json.get("stream"):
            yield from answer(completion("".join(words)))
            return
        self._pieces_read = threading.Semaphore(0)
        yield HEAD + chunk(ROLE + delta(content=words[0]))
        for word in words[1:]:
            self._pieces_read.acquire(timeout=10)
            yield chunk(delta(content=word))
        self._pieces_read.acquire(timeout=10)
        counted = {"prompt_tokens": len(request.body) // 4, "completion_tokens": 3 * len(words)}
        yield chunk(delta(finish="stop") + event(choices=[], usage=counted) + DONE) + END


class Caller:
    """A voice platform in a conversation, of which it replays the newest messages."""

    def __init__(self, server: ProxyServer, model: PacedModel, **fields: Any) -> None:
        self._server = server
        self._model = model
        self._fields = fields
        self.turns = 0
        self._messages: list[dict[str, Any]] = []

    def ask(self, chunks: int = CHUNKS, *, stream: bool = True) -> None:
        """Sends new words, and reads the answer."""
        self.turns += 1
        words = f"And what is the weather like in town number {self.turns}, tomorrow morning at nine?"
        self._add("user", words, {"source": "asr", "user": "u-1"})
        system = {"role": "system", "content": "You are a helpful receptionist."}
        window = [system, *self._messages[-WINDOW:]]
        body = {"model": f"fake-{chunks}", "messages": window, "stream": stream, "turn_id": self.turns}
        with self._server.client.stream("POST", "/v1/chat/completions", json=body | self._fields) as response:
            response.raise_for_status()
            for _ in response.iter_raw():
                self._model.piece_read()
        self._add("assistant", "".join(words_of(chunks)), {"source": "llm"})

    def _add(self, role: str, content: str, metadata: dict[str, str]) -> None:
        at = 1_790_000_000_000 + len(self._messages) * 4_000
        message = {"role": role, "content": content, "turn_id": self.turns, "timestamp": at}
        self._messages.append(message | {"metadata": metadata})


def words_of(chunks: int) -> list[str]:
    """Returns the text of an answer in this many chunks."""
    return [f" number {place}" for place in range(chunks)]


def measure(config: Path, memory: str) -> dict[str, Calls]:
    """Returns the calls of one turn of each kind, and of the chunks of an answer.

    ``memory`` is the address of the sessions.
    """
    environ = {"MEMORY_URL": memory, "HOST": "127.0.0.1", "PORT": "0"}
    with ExitStack() as stack:
        stack.enter_context(logging_to(stack.enter_context(Path(os.devnull).open("w"))))
        upstream, model = stack.enter_context(FakeUpstream()), PacedModel()
        upstream.script = model.script
        environ["UPSTREAM_BASE_URL"] = upstream.url
        server = stack.enter_context(ProxyServer(config, environ, stack.enter_context(unread_inbox())))
        if "memory" in server.client.get("/readyz").json()["degraded"]:
            sys.exit("bench.calls: the store at --memory does not answer; start it, or leave --memory out")
        counter = CallCounter(server)

        alone = Caller(server, model)
        for _ in range(WINDOW):
            alone.ask()
        idle = counter.typical(lambda: None)
        measured = {
            "a turn without a session": counter.typical(alone.ask),
            "the same in more chunks": counter.typical(lambda: alone.ask(MORE_CHUNKS)),
            "a whole answer without a session": counter.typical(lambda: alone.ask(stream=False)),
        }
        rooms = (f"room-{number}" for number in itertools.count())
        measured["the first turn of a session"] = counter.typical(
            lambda: Caller(server, model, channel=next(rooms), user="u-1").ask()
        )
        caller = Caller(server, model, channel=next(rooms), user="u-1")
        for number in (LATE, VERY_LATE):
            while caller.turns < number - _MEASURED:
                caller.ask()
            until(lambda: not server.app.gauges().queued)
            measured[f"turn {number} of a session"] = counter.typical(caller.ask)
    return {kind: calls - idle for kind, calls in measured.items()}


def main() -> None:
    """Prints the number of calls of each kind of turn."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config", nargs="?", type=Path, default=ROOT / "config" / "agora.yaml")
    parser.add_argument("--list", metavar="KIND", help="name the functions of one kind of turn")
    parser.add_argument(
        "--memory", metavar="URL", help="where sessions are: an empty store; else an SQLite file"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        measured = measure(options.config, options.memory or f"sqlite:{folder}/calls.db")
    streamed, longer = measured["a turn without a session"], measured["the same in more chunks"]
    for kind, calls in measured.items():
        sys.stdout.write(f"{kind}: {calls.total()}\n")
    # Each takes a whole number; what an idle server happens to run makes up to half a call of difference.
    per_chunk = round((longer.total() - streamed.total()) / (MORE_CHUNKS - CHUNKS))
    sys.stdout.write(f"one chunk more: {per_chunk}\n")
    for code, count in measured[options.list].most_common() if options.list else ():
        file = code.co_filename.removeprefix(f"{ROOT}/").rpartition("site-packages/")[2]
        sys.stdout.write(f"{count:6} {file}:{code.co_firstlineno} {code.co_qualname}\n")


if __name__ == "__main__":
    main()
