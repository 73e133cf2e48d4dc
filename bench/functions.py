"""Counts the product's functions and files that one turn runs.

python -m bench.functions [CONFIG] [--list]

A server runs in a thread of this process, with a fake model, and a SQLite file as its memory. As under
``serve``, another process, which is not counted, archives and runs jobs. ``sys.setprofile`` counts each
function once, including comprehensions and lambdas, in all threads for two seconds from the request on.
Functions that an idle server runs in the same time are subtracted.
"""

import argparse
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.called import Function, recorded
from tests.peers.fake_upstream import FakeUpstream
from tests.proxy_server import ProxyServer, unread_inbox
from tests.serving_process import at_rest
from tests.waiting import until

ROOT = Path(__file__).parents[1]
TURNS = [
    "Good morning, I would like to move my appointment.",
    "It is on Thursday at three, under the name of Miller.",
]
SETTLED = 2.0
"""Seconds in which the work after a turn is done."""


def window(turn: int) -> list[dict[str, Any]]:
    """Returns the messages that Agora posts in a turn: the whole conversation, with turn ids."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": "You are a helpful receptionist."}]
    for number, words in enumerate(TURNS[: turn + 1]):
        common = {"turn_id": number + 1, "timestamp": 1_790_000_000_000 + number * 9_000}
        asked = {"role": "user", "content": words, "metadata": {"source": "asr", "user": "u-1"}}
        messages.append({**asked, **common})
        if number < turn:
            answer = {"role": "assistant", "content": "Hello there.", "metadata": {"source": "llm"}}
            messages.append({**answer, **common})
    return messages


def second_turn(config: Path, folder: Path, *, session: bool) -> list[Function]:
    """Returns the functions that the second turn of a call runs, without those of an idle server."""
    body = {"stream": True, "user": "u-1"} | ({"channel": "room-1"} if session else {})
    environ = {"MEMORY_URL": f"sqlite:{folder / f'{session}.db'}", "HOST": "127.0.0.1", "PORT": "0"}
    with ExitStack() as stack:
        environ["UPSTREAM_BASE_URL"] = stack.enter_context(FakeUpstream()).url
        calls = stack.enter_context(recorded())
        inbox = stack.enter_context(unread_inbox())
        server = stack.enter_context(ProxyServer(config, environ, inbox))
        for turn in range(len(TURNS)):
            until(lambda: at_rest(server.client), 30)
            calls.collect()
            time.sleep(SETTLED)
            idle = set(calls.collect())
            server.chat(window(turn), turn_id=turn + 1, **body).raise_for_status()
            time.sleep(SETTLED)
            ran = calls.collect()
    return [function for function in dict.fromkeys(ran) if function not in idle]


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
