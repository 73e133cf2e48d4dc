"""The log: lines of text or JSON, written by a separate thread; one for each finished turn."""

import asyncio
import contextlib
import json
import logging
import os
import secrets
import select
import signal
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from hashlib import blake2b
from logging.handlers import QueueHandler, QueueListener
from queue import Empty, SimpleQueue
from threading import Event
from typing import Any, Final, Literal, TextIO

import msgspec

from filters.message import newest_words
from proxy.answer.transcript import transcript
from proxy.observe.observation import Observation, TurnReport

Format = Literal["text", "json"]
Level = Literal["debug", "info", "warning", "error"]

_TEXT: Final = "%(asctime)s %(levelname)s %(message)s"
_LONGEST_QUEUE: Final = 10_000
_PATIENCE: Final = 1.0
_A_MOMENT: Final = 0.05
_PIPE_PIECE: Final = getattr(select, "PIPE_BUF", 512)
"""How many bytes a pipe takes in one piece, as POSIX has it."""
_MOST_IGNORED: Final = 10
_LONGEST_REASON: Final = 300
_LONGEST_TEXT: Final = 2000
_EVERY: Final = 60.0
# Made before worker processes are forked, so that they share it; it is stored nowhere, so that once the
# server has ended no id can be tried on its log.
_USER_KEY: Final = secrets.token_bytes(32)
_USER_DIGEST: Final = 8

_log = logging.getLogger("turnkeeper")
_turns_log = logging.getLogger("turnkeeper.turns")


class LogEntry:
    """A message with fields that are not ``None``: separate keys in JSON, ``name=value`` in text."""

    def __init__(self, message: str, fields: dict[str, Any]) -> None:
        self.message = message
        self.fields = fields

    def __str__(self) -> str:
        parts = [self.message]
        for name, value in self.fields.items():
            if value is None:
                continue
            text = str(value)
            if not text.isprintable() or " " in text or not text:
                text = json.dumps(text, ensure_ascii=False)
            parts.append(f"{name}={text}")
        return " ".join(parts)


class JsonLines(logging.Formatter):
    """Each record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """The time (UTC), level, logger and message, then the fields."""
        entry = record.msg if isinstance(record.msg, LogEntry) else None
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": entry.message if entry else record.getMessage(),
        }
        if entry:
            line |= {name: value for name, value in entry.fields.items() if value is not None}
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


@contextlib.contextmanager
def logging_to(stream: TextIO, *, form: Format = "text", level: Level = "info") -> Iterator[None]:
    """Sends all log records to ``stream``, without waiting: beyond 10,000 queued lines new ones are lost."""
    # No line names a thread, a process or a line of code: records are made without looking for them.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging._srcfile = None  # noqa: SLF001 - as the library's own advice has it
    writer = _handler(stream, form, _BatchingHandler)
    queueing = _QueueHandler(SimpleQueue())
    listener = _QueueListener(queueing.queue, writer)
    root = logging.getLogger()
    root.addHandler(queueing)
    root.setLevel(level.upper())
    listener.start()
    try:
        yield
    finally:
        root.removeHandler(queueing)
        listener.stop()


def forking_logger(stream: TextIO, *, form: Format = "text", level: Level = "info") -> logging.Logger:
    """A logger without a thread, for a process that forks others; it never waits for its reader."""
    logger = logging.Logger("turnkeeper", level.upper())  # noqa: LOG001 - what is forked must not inherit it
    logger.addHandler(_handler(stream, form, _ForkingHandler))
    return logger


def exit_within_a_second() -> None:
    """Gives this process one second to write its last lines: their reader may have stalled."""
    die_within(_PATIENCE)


def die_within(seconds: float) -> None:
    """Lets the kernel end this process after this many seconds, even if it hangs."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])
    signal.setitimer(signal.ITIMER_REAL, seconds)


class _UnbufferedHandler(logging.StreamHandler[TextIO]):
    """Writes past the stream's buffer and holds no lock, so that a stalled reader cannot block the exit."""

    def createLock(self) -> None:  # noqa: N802 - as the library has it
        self.lock = None

    def flush(self) -> None:
        """Does nothing, since nothing is buffered; the library's own would want the lock."""

    def handle(self, record: logging.LogRecord) -> bool:
        self.emit(record)
        return True

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self.write(f"{self.format(record)}\n".encode(self.stream.encoding, "backslashreplace"))
        except Exception:  # noqa: BLE001 - as the library does
            self.handleError(record)

    def write(self, lines: bytes) -> None:
        with contextlib.suppress(OSError):  # the reader has gone away
            while lines:
                lines = lines[os.write(self.stream.fileno(), lines) :]


class _BatchingHandler(_UnbufferedHandler):
    """Writes several lines at once, at the latest at ``flush``: each write releases the interpreter.

    A batch is at most what a pipe takes in one piece; otherwise lines of several processes would mix.
    """

    _lines = b""

    def write(self, lines: bytes) -> None:
        if len(self._lines) + len(lines) > _PIPE_PIECE:
            self.flush()
        self._lines += lines

    def flush(self) -> None:
        lines, self._lines = self._lines, b""
        super().write(lines)


class _ForkingHandler(_UnbufferedHandler):
    """Writes each line in a separate process."""

    def emit(self, record: logging.LogRecord) -> None:
        if os.fork():
            return
        try:
            exit_within_a_second()
            super().emit(record)
        finally:
            os._exit(0)


class _TextLines(logging.Formatter):
    """Each record as one line of text, with the local date and time."""

    default_msec_format = "%s.%03d"


def _handler(stream: TextIO, form: Format, kind: type[_UnbufferedHandler]) -> logging.Handler:
    handler = kind(stream)
    handler.setFormatter(JsonLines() if form == "json" else _TextLines(_TEXT))
    return handler


class _QueueHandler(QueueHandler):
    """Queues records as they are: their arguments never change."""

    queue: "SimpleQueue[logging.LogRecord]"

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        return record

    def enqueue(self, record: logging.LogRecord) -> None:
        if self.queue.qsize() < _LONGEST_QUEUE:
            self.queue.put_nowait(record)


class _QueueListener(QueueListener):
    """Writes in a thread; a stalled reader does not hold up ``stop``."""

    queue: "SimpleQueue[logging.LogRecord]"

    def __init__(self, queue: "SimpleQueue[logging.LogRecord]", writer: logging.Handler) -> None:
        super().__init__(queue, writer)
        self._writer = writer
        self._stopping = Event()

    def dequeue(self, block: bool) -> logging.LogRecord:  # noqa: FBT001 - as the library has it
        """Returns the next record; the thread wakes once for all that come within a moment."""
        try:
            record = self.queue.get_nowait()
        except Empty:
            self._writer.flush()
            self._stopping.wait(_A_MOMENT)
            record = self.queue.get(block)
        if record is self._sentinel:  # type: ignore[attr-defined]
            self._writer.flush()
        return record

    def stop(self) -> None:
        self._stopping.set()
        self.queue.put_nowait(self._sentinel)  # type: ignore[attr-defined]
        if self._thread:
            self._thread.join(_PATIENCE)


def log_turn(turn: TurnReport, observation: Observation, *, with_text: bool) -> None:
    """Logs a turn: ids, times and counts, the reason if it failed.

    ``with_text`` adds the user's newest words and the answer, each cut at 2000 characters.
    """
    state = turn.state
    failed = state == "failed"
    level = logging.WARNING if failed else logging.INFO
    if not _turns_log.isEnabledFor(level):
        return
    fields = fields_of(turn)
    if failed and observation.reason:
        fields["reason"] = observation.reason[:_LONGEST_REASON]
    if with_text:
        messages = observation.content.messages if observation.content else ()
        fields["asked"] = newest_words(messages)[:_LONGEST_TEXT]
        fields["answered"] = transcript(observation.answer.data).text[:_LONGEST_TEXT]
    _turns_log.log(level, LogEntry(f"turn {state}", fields))


def fields_of(turn: TurnReport) -> dict[str, Any]:
    """The log's fields of a turn; durations in milliseconds."""
    durations = (*turn.stages, ("first_token", turn.first_token), ("duration", turn.duration))
    return {
        "turn": turn.id,
        "request": turn.request,
        "tenant": turn.tenant,
        "session": turn.session,
        "user": None if turn.user is None else user_digest(turn.tenant, turn.user),
        "number": turn.turn_id,
        "pipeline": turn.pipeline,
        "upstream": turn.upstream,
        "model": turn.model,
        "outcome": turn.outcome,
        "status": turn.status,
        "code": turn.code,
        **{f"{name}_ms": round(seconds * 1000, 2) for name, seconds in durations if seconds is not None},
        "input_tokens": turn.input_tokens,
        "output_tokens": turn.output_tokens,
        "degraded": ",".join(turn.degraded) or None,
        "ignored": ",".join(turn.ignored[:_MOST_IGNORED]) or None,
    }


def user_digest(tenant: str, user: str) -> str:
    """Returns a hash of a user's id for the log; it is the same as long as the server runs."""
    text = msgspec.json.encode((tenant, user.encode("utf-8", "surrogatepass")))
    return blake2b(text, key=_USER_KEY, digest_size=_USER_DIGEST).hexdigest()


class MinuteLog:
    """Warns of a first event at once, then of each minute's events, with their counts by ``field``."""

    def __init__(self, message: str, field: str) -> None:
        self._message = message
        self._field = field
        self._counts: Counter[str] = Counter()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, value: str) -> None:
        """Counts an event."""
        self._counts[value] += 1
        if self._timer is None:
            self._log_counts()

    def flush(self) -> None:
        """Logs what has not been logged, and stops the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for value, count in self._counts.items():
            _log.warning(LogEntry(self._message, {self._field: value, "count": count}))
        self._counts.clear()

    def _log_counts(self) -> None:
        any_new = bool(self._counts)
        self.flush()
        if any_new:
            self._timer = asyncio.get_running_loop().call_later(_EVERY, self._log_counts)
