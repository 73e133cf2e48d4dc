"""Several processes at one port, and the one that starts them, ends them and starts them again."""

import contextlib
import gc
import os
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Final

from proxy.errors import ConfigError
from proxy.observe import metrics
from proxy.observe.log import exit_within_a_second, forking_logger
from proxy.observe.metrics import Metrics
from proxy.server import process
from proxy.server.app import build_app
from proxy.server.bus import Bus, BusMember, inboxes
from proxy.server.reload import Reload
from proxy.server.signals import SIGNALS
from proxy.settings.load import load
from proxy.settings.settings import Limits, Settings

_YOUNG: Final = 5.0
_LONGEST_PAUSE: Final = 10.0
_DRAINED_WITHIN: Final = 12.0


class Supervisor:
    """``size`` processes, each of which calls ``work`` with its place and ends when that returns.

    ``again`` is called on SIGHUP, and the others get the signal where it says so. ``ended`` is told of each
    process that is no more, and ``lost`` of its place and pid where that was not wanted; it is replaced, at
    once or, where it did not live for long, after a pause. After SIGTERM or SIGINT no more are started,
    ``stopping`` is called, and all have ``within`` seconds.
    """

    def __init__(  # noqa: PLR0913 - all that a first process does is told to it
        self,
        size: int,
        work: Callable[[int], None],
        *,
        again: Callable[[], bool],
        ended: Callable[[int], None],
        lost: Callable[[int, int], None],
        stopping: Callable[[], None],
        within: float,
    ) -> None:
        self._work = work
        self._again = again
        self._tell_ended = ended
        self._tell_lost = lost
        self._tell_stopping = stopping
        self._within = within
        self._places: dict[int, tuple[int, float]] = {}
        self._missing = dict.fromkeys(range(size), 0.0)
        self._pauses = dict.fromkeys(range(size), 0.0)
        self._stopping = False
        self.lifeline, self._held = os.pipe()

    def run(self) -> bool:
        """Returns when all have ended; whether all ended well."""
        signal.signal(signal.SIGCHLD, lambda *_: None)
        # Those that it starts are born so, and listen when they can.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        well = True
        self._fill()
        while self._places or not self._stopping:
            sign = signal.sigwait(SIGNALS)
            if sign in {signal.SIGTERM, signal.SIGINT}:
                self._stop()
            elif sign == signal.SIGHUP and not self._stopping and self._again():
                self._send(signal.SIGHUP)
            elif sign == signal.SIGALRM and self._stopping:
                self._send(signal.SIGKILL)
            well = self._reap() and well
            self._fill()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return well

    def _stop(self) -> None:
        if not self._stopping:
            self._stopping = True
            self._tell_stopping()
            signal.setitimer(signal.ITIMER_REAL, self._within, 1.0)
        self._send(signal.SIGTERM)

    def _send(self, sign: int) -> None:
        for pid in self._places:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, sign)

    def _reap(self) -> bool:
        """Takes note of all that have ended; whether those that were to end did so well."""
        well = True
        while pid := _ended():
            ours = self._places.pop(pid[0], None)
            if ours is None:  # an orphan: a container leaves all of its own to its first process
                continue
            place, since = ours
            self._tell_ended(pid[0])
            if self._stopping:
                well = well and pid[1] == 0
                continue
            self._tell_lost(place, pid[0])
            young = time.monotonic() - since < _YOUNG
            self._pauses[place] = min(2 * self._pauses[place] or 1.0, _LONGEST_PAUSE) if young else 0.0
            self._missing[place] = time.monotonic() + self._pauses[place]
        return well

    def _fill(self) -> None:
        """Starts what is missing and due, and sees to it that somebody looks again."""
        if self._stopping:
            return
        now = time.monotonic()
        for place, due in list(self._missing.items()):
            if due <= now:
                del self._missing[place]
                self._places[self._start(place)] = place, now
        if self._missing:
            signal.setitimer(signal.ITIMER_REAL, max(0.01, min(self._missing.values()) - now))

    def _start(self, place: int) -> int:
        pid = os.fork()
        if pid:
            return pid
        code = 1
        try:
            os.close(self._held)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self._work(place)
            code = 0
        except BaseException:  # noqa: BLE001 - whatever it is, this process must not go on as if it were the first
            exit_within_a_second()
            traceback.print_exc()
        finally:
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(OSError):
                    stream.flush()
            os._exit(code)


def _ended() -> tuple[int, int] | None:
    with contextlib.suppress(ChildProcessError):
        pid, status = os.waitpid(-1, os.WNOHANG)
        return (pid, status) if pid else None
    return None


def check_workers(settings: Settings, size: int) -> None:
    """Raises ConfigError where several processes could not serve this as one."""
    if size > 1 and not hasattr(os, "fork"):
        raise ConfigError(
            "--workers needs a system that can fork: use one process here, or several machines."
        )
    memory = settings.memory
    if size > 1 and memory and memory.sessions.get_secret_value().startswith("memory:"):
        raise ConfigError(
            "--workers: 'memory.sessions' is 'memory:', which each process would have for itself;"
            " name a file (sqlite:PATH) or a server (redis://…, postgresql://…)."
        )


class Workers:
    """``size`` processes that behave as one."""

    def __init__(self, path: Path, settings: Settings, environ: Mapping[str, str], size: int) -> None:
        self._path = path
        self._settings = settings
        self._environ = environ
        self._among = inboxes(size)
        log = settings.log
        self._log = forking_logger(sys.stderr, form=log.format, level=log.level)

    def serve(self, sockets: list[socket.socket], *, watch: bool) -> bool:
        """Serves until SIGTERM or SIGINT; whether all processes ended well."""
        if _counted_apart(self._settings):
            self._log.warning(
                "Without Redis each of %d processes counts 'limits' for itself", len(self._among)
            )
        # All processes have one secret for the page's forms; and what is imported here is theirs together.
        import_module("proxy.page.app")
        with tempfile.TemporaryDirectory(prefix="turnkeeper-") as folder:
            metrics.share_between_processes(folder)
            gc.collect()
            gc.freeze()
            crew = Supervisor(
                len(self._among),
                lambda place: self._work(place, crew, sockets, watch=watch and place == 0),
                again=self._again,
                ended=metrics.forget_process,
                lost=self._lost,
                stopping=lambda: _close(sockets),
                within=self._settings.listen.grace + _DRAINED_WITHIN,
            )
            return crew.run()

    def _work(self, place: int, crew: Supervisor, sockets: list[socket.socket], *, watch: bool) -> None:
        app = build_app(self._settings, self._environ, metrics=Metrics(shared=True))
        again = Reload(app, self._settings, self._path, self._environ)
        member = BusMember(app, Bus(self._among, place), crew.lifeline)
        first = os.getppid()
        beside = [member.run]
        if watch:
            beside.append(lambda: again.watch(lambda: os.kill(first, signal.SIGHUP)))
        process.serve(app, again, self._settings, sockets, beside)

    def _again(self) -> bool:
        """Reads the configuration; whether the others should, too. What is wrong is told once."""
        try:
            settings = load(self._path, self._environ)
            check_workers(settings, len(self._among))
        except ConfigError as error:
            self._log.error("The configuration stays as it was:\n%s", error.message)
            return False
        except (Exception, SystemExit):  # noqa: BLE001 - all processes would end with this one
            self._log.exception("The configuration stays as it was; the new one could not be read")
            return False
        self._settings = settings
        return True

    def _lost(self, place: int, pid: int) -> None:
        self._log.error("Process %d (pid %d) has ended; it is started again", place + 1, pid)


def _close(sockets: list[socket.socket]) -> None:
    # Who serves has its own: with ours open, callers would reach a port at which nobody is left to answer.
    for each in sockets:
        each.close()


def _counted_apart(settings: Settings) -> bool:
    """Whether there are limits that each process keeps for itself."""
    kept = settings.memory.sessions.get_secret_value() if settings.memory else ""
    return settings.limits != Limits() and not kept.startswith("redis")
