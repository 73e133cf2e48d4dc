"""How many of the product's functions and files one turn runs.

python -m bench.functions [CONFIG] [--list]

A server runs in a thread of this process, in front of a fake model, with a SQLite file as its memory. The
functions are counted by ``sys.setprofile`` in all of its threads, each one once, comprehensions and lambdas
among them, for two seconds from the request on. What an idle server runs in as long a time is taken off.
"""

import argparse
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

from tests.peers.fake_upstream import FakeUpstream
from tests.proxy_server import ProxyServer
from tests.serving_process import at_rest
from tests.waiting import until

ROOT = Path(__file__).parents[1]
PRODUCT = (str(ROOT / "proxy") + "/", str(ROOT / "filters") + "/")
TURNS = [
    "Good morning, I would like to move my appointment.",
    "It is on Thursday at three, under the name of Miller.",
]
SETTLED = 2.0
"""Seconds in which the work behind a turn is done."""


class Function(NamedTuple):
    """A function of the product; ``name`` is its qualified one."""

    file: str
    line: int
    name: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.name}"


class Calls:
    """The product's functions that threads have called, in the order of their first call."""

    def __init__(self) -> None:
        self._codes: dict[CodeType, None] = {}

    def profile(self, frame: FrameType, event: str, _arg: Any) -> None:
        """For ``sys.setprofile``."""
        if event == "call" and frame.f_code.co_filename.startswith(PRODUCT):
            self._codes.setdefault(frame.f_code)

    def collect(self) -> list[Function]:
        """The functions since the last time."""
        codes, self._codes = self._codes, {}
        return [
            Function(str(Path(code.co_filename).relative_to(ROOT)), code.co_firstlineno, code.co_qualname)
            for code in codes
        ]


@contextmanager
def counted() -> Iterator[Calls]:
    """What threads call that start within."""
    calls = Calls()
    threading.setprofile(calls.profile)
    try:
        yield calls
    finally:
        threading.setprofile(None)  # type: ignore[arg-type]


def window(turn: int) -> list[dict[str, Any]]:
    """What Agora posts at a turn: all that was said before, with its numbers."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": "You are a helpful receptionist."}]
    for number, words in enumerate(TURNS[: turn + 1]):
        common = {"turn_id": number + 1, "timestamp": 1_790_000_000_000 + number * 9_000}
        asked = {"role": "user", "content": words, "metadata": {"source": "asr", "user": "u-1"}}
        messages.append({**asked, **common})
        if number < turn:
            answer = {"role": "assistant", "content": "Hello there!", "metadata": {"source": "llm"}}
            messages.append({**answer, **common})
    return messages


def second_turn(config: Path, folder: Path, *, session: bool) -> list[Function]:
    """The functions that the second turn of a conversation runs, less what runs in an idle server."""
    body = {"stream": True, "user": "u-1"} | ({"channel": "room-1"} if session else {})
    environ = {"MEMORY_URL": f"sqlite:{folder / f'{session}.db'}", "HOST": "127.0.0.1", "PORT": "0"}
    with ExitStack() as stack:
        environ["UPSTREAM_BASE_URL"] = stack.enter_context(FakeUpstream()).url
        calls = stack.enter_context(counted())
        server = stack.enter_context(ProxyServer(config, environ))
        for turn in range(len(TURNS)):
            until(lambda: at_rest(server.client), 30)
            calls.collect()
            time.sleep(SETTLED)
            idle = set(calls.collect())
            server.chat(window(turn), turn_id=turn + 1, **body).raise_for_status()
            time.sleep(SETTLED)
            ran = calls.collect()
    return [function for function in ran if function not in idle]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config", nargs="?", type=Path, default=ROOT / "config" / "agora.yaml")
    parser.add_argument("--list", action="store_true", help="name each function")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for session in (False, True):
            ran = second_turn(chosen.config, Path(folder), session=session)
            files = {function.file for function in ran}
            kind = "with" if session else "without"
            sys.stdout.write(f"a turn {kind} a session: {len(ran)} functions in {len(files)} files\n")
            if chosen.list:
                sys.stdout.write("".join(f"  {function}\n" for function in ran))


if __name__ == "__main__":
    main()
