"""The log: lines for people or for machines, written by a thread of its own."""

import json
import logging
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from logging.handlers import QueueHandler, QueueListener
from queue import Empty, SimpleQueue
from threading import Event
from typing import Any, Final, Literal, TextIO

Format = Literal["text", "json"]
Level = Literal["debug", "info", "warning", "error"]
_TEXT: Final = "%(asctime)s %(levelname)s %(message)s"
_MOST_WAITING: Final = 10_000
_PATIENCE: Final = 1.0
_A_MOMENT: Final = 0.05


class LogEntry:
    """A message with fields of its own, which a machine reads apart and people read in one line."""

    def __init__(self, message: str, fields: dict[str, Any]) -> None:
        self.message = message
        self.fields = fields

    def __str__(self) -> str:
        return " ".join([self.message, *(f"{name}={_shown(value)}" for name, value in self.fields.items())])


class JsonLines(logging.Formatter):
    """Each record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """Its time (UTC), level, logger and message, then the fields that it has."""
        entry = record.msg if isinstance(record.msg, LogEntry) else None
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": entry.message if entry else record.getMessage(),
            **(entry.fields if entry else {}),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


@contextmanager
def logging_to(stream: TextIO, *, form: Format = "text", level: Level = "info") -> Iterator[None]:
    """Everything that is logged goes to ``stream``. Nobody waits: beyond 10,000 lines, new ones are lost."""
    _tell_no_places()
    writer = _writer(stream, form)
    handing = _Handing(SimpleQueue())
    listener = _Writing(handing.queue, writer)
    root = logging.getLogger()
    root.addHandler(handing)
    root.setLevel(level.upper())
    listener.start()
    try:
        yield
    finally:
        root.removeHandler(handing)
        listener.stop()


def _tell_no_places() -> None:
    """No line names a thread, a process or a line of code: records are made without looking for them."""
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging._srcfile = None  # noqa: SLF001 - as the library's own advice has it


def forking_logger(stream: TextIO, *, form: Format = "text", level: Level = "info") -> logging.Logger:
    """A logger that starts no thread and waits for no reader, for a process that forks and reaps others."""
    logger = logging.Logger("turnkeeper", level.upper())  # noqa: LOG001 - what is forked must not inherit it
    logger.addHandler(_writer(stream, form, _Forking))
    return logger


def exit_within_a_second() -> None:
    """From now on this process has a second to say its last words: their reader may have stalled."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])
    signal.setitimer(signal.ITIMER_REAL, _PATIENCE)


class _Straight(logging.StreamHandler[TextIO]):
    """Writes past a stream's buffer, and holds no lock: who ends while the reader stalls waits for none."""

    def createLock(self) -> None:  # noqa: N802 - as the library has it
        self.lock = None

    def handle(self, record: logging.LogRecord) -> bool:
        self.emit(record)
        return True

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = f"{self.format(record)}\n".encode(self.stream.encoding, "backslashreplace")
            while line:
                line = line[os.write(self.stream.fileno(), line) :]
        except OSError:
            return  # nobody is left to be told
        except Exception:  # noqa: BLE001 - as the library does
            self.handleError(record)


class _Forking(_Straight):
    """Writes each line in a process of its own."""

    def emit(self, record: logging.LogRecord) -> None:
        if os.fork():
            return
        try:
            exit_within_a_second()
            super().emit(record)
        finally:
            os._exit(0)


def _writer(stream: TextIO, form: Format, kind: type[_Straight] = _Straight) -> logging.Handler:
    writer = kind(stream)
    writer.setFormatter(JsonLines() if form == "json" else _Text(_TEXT))
    return writer


class _Text(logging.Formatter):
    """Each record as one line with the day and the time, by the clock of the place."""

    default_msec_format = "%s.%03d"


class _Handing(QueueHandler):
    """Hands records over as they are: what they carry never changes."""

    queue: "SimpleQueue[logging.LogRecord]"

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        return record

    def enqueue(self, record: logging.LogRecord) -> None:
        if self.queue.qsize() < _MOST_WAITING:
            self.queue.put_nowait(record)


class _Writing(QueueListener):
    """Writes in a thread. A reader who stalls does not hold up the end."""

    queue: "SimpleQueue[logging.LogRecord]"

    def __init__(self, queue: "SimpleQueue[logging.LogRecord]", writer: logging.Handler) -> None:
        super().__init__(queue, writer)
        self._ended = Event()

    def dequeue(self, block: bool) -> logging.LogRecord:  # noqa: FBT001 - as the library has it
        """The next record; one wake of the thread is for all that come within a moment."""
        try:
            return self.queue.get_nowait()
        except Empty:
            self._ended.wait(_A_MOMENT)
            return self.queue.get(block)

    def stop(self) -> None:
        self._ended.set()
        self.queue.put_nowait(self._sentinel)  # type: ignore[attr-defined]
        if self._thread:
            self._thread.join(_PATIENCE)


def _shown(value: object) -> str:
    """A value on one line, in quotation marks where it has spaces."""
    text = value if isinstance(value, str) else str(value)
    return json.dumps(text, ensure_ascii=False) if not text.isprintable() or " " in text or not text else text
