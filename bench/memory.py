"""Measures the memory that a server keeps after the largest requests and answers.

python -m bench.memory [--seconds 60] [--rows NAME]

Some callers send sessions with texts of 15 MB, and others get answers of 60 MB: streamed and whole, with and
without a session, with and without answer filters. The megabytes are those of all processes of the server
together (PSS), at their peak and after ``--seconds``.
"""

import argparse
import http.client
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple, Self

from bench.serving import Running
from bench.victim import chat, served, user

_CHAT = "/v1/chat/completions"
_SPOKEN = "/pipelines/spoken" + _CHAT
_LOOK_EVERY = 0.05
_PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 15_000_000}}


class Request(NamedTuple):
    """One request: the answer that the model shall give, and whether it is streamed."""

    path: str
    body: bytes
    session: str | None = None


def _asks(model: str, path: str = _CHAT, *, sessions: bool = True, stream: bool = True) -> list[Request]:
    """Yields the requests of eight callers with long answers."""
    body = chat([user("Tell me all.")], stream=stream).replace(b"paced-1-0", model.encode())
    return [Request(path, body, f"{model}-{i}" if sessions else None) for i in range(8)]


def _texts() -> Iterator[Request]:
    words = " ".join(f"word{i % 5000}" for i in range(1_400_000))
    return (Request(_CHAT, chat([user(f"{i} {words}")]), f"text-{i}") for i in range(24))


def _turns() -> Iterator[Request]:
    words = " ".join(f"word{i % 5000}" for i in range(24_000))
    return (Request(_CHAT, chat([user(f"{i} {words}")]), f"turn-{i % 24}") for i in range(24 * 8))


def _pictures() -> Iterator[Request]:
    contents = ([_PICTURE, {"type": "text", "text": f"{i}?"}] for i in range(24))
    return (Request(_CHAT, chat([user(content)]), f"p-{i}") for i, content in enumerate(contents))


ROWS: Mapping[str, Callable[[], Iterable[Request]]] = {
    "24 sessions with texts of 15 MB": _texts,
    "24 sessions with pictures of 15 MB": _pictures,
    "24 sessions with eight turns of 200,000 characters": _turns,
    "eight streams of 60 MB without a session": lambda: _asks("stream-60", sessions=False),
    "eight streams of 60 MB in sessions": lambda: _asks("stream-60"),
    "eight streams of 60 MB through answer filters": lambda: _asks("stream-60", _SPOKEN),
    "eight answers in one delta of 10 MB": lambda: _asks("delta-10"),
    "eight whole answers of 60 MB": lambda: _asks("whole-60", stream=False),
    "eight whole answers of 60 MB through answer filters": lambda: _asks("whole-60", _SPOKEN, stream=False),
}


def send(port: int, request: Request) -> str:
    """Sends a request and reads the whole answer; returns its status, or the error."""
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    headers = {"authorization": "Bearer chat-only", "content-type": "application/json"}
    if request.session:
        headers |= {"x-session-id": request.session, "x-user-id": request.session}
    try:
        client.request("POST", request.path, request.body, headers)
        answer = client.getresponse()
        while answer.read(1_000_000):
            pass
        return str(answer.status)
    except (OSError, http.client.HTTPException) as error:
        return type(error).__name__
    finally:
        client.close()


class Peak:
    """Measures the peak of a server's memory while it is entered, in megabytes."""

    def __init__(self, server: Running) -> None:
        self.megabytes = 0.0
        self._server = server
        self._over = threading.Event()
        self._watch = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Self:
        self._watch.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._watch.join()

    def _look(self) -> None:
        while not self._over.wait(_LOOK_EVERY):
            self.megabytes = max(self.megabytes, self._server.spent().megabytes)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", default="", help="rows whose names have this in them")
    parser.add_argument("--seconds", type=float, default=60)
    asked = parser.parse_args()
    sys.stdout.write("| what callers send, or are sent | answered | at most, MB | after, MB |\n")
    sys.stdout.write("|---|---|---|---|\n")
    with tempfile.TemporaryDirectory() as folder, served(Path(folder)) as (port, server):
        sys.stdout.write(f"| nothing yet | | | {server.spent().megabytes:.0f} |\n")
        for name, requests in ROWS.items():
            if asked.rows not in name:
                continue
            began = time.monotonic()
            with Peak(server) as peak, ThreadPoolExecutor(8) as senders:
                statuses = set(senders.map(partial(send, port), requests()))
            answered = f"{', '.join(sorted(statuses))} in {time.monotonic() - began:.1f} s"
            time.sleep(asked.seconds)
            after = server.spent().megabytes
            sys.stdout.write(f"| {name} | {answered} | {peak.megabytes:.0f} | {after:.0f} |\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
