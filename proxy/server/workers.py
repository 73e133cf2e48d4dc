"""One configuration served by several worker processes at one port."""

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

from proxy.circuit import Backoff
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

# A process that lives for less long is started again after a pause.
_SHORT_LIFE: Final = 5.0
_RESTARTS: Final = Backoff(shortest=1.0, longest=10.0)
_DRAIN_TIMEOUT: Final = 12.0


def check_workers(settings: Settings, count: int) -> None:
    """Raises ConfigError where several processes could not serve this as one."""
    if count > 1 and not hasattr(os, "fork"):
        raise ConfigError(
            "--workers needs a system that can fork: use one process here, or several machines."
        )
    memory = settings.memory
    if count > 1 and memory and memory.sessions.get_secret_value().startswith("memory:"):
        raise ConfigError(
            "--workers: 'memory.sessions' is 'memory:', which each process would have for itself;"
            " name a file (sqlite:PATH) or a server (redis://…, postgresql://…)."
        )


class Workers:
    """``count`` processes that serve as one."""

    def __init__(self, path: Path, settings: Settings, environ: Mapping[str, str], count: int) -> None:
        self._path = path
        self._settings = settings
        self._environ = environ
        self._inboxes = inboxes(count)
        log = settings.log
        self._log = forking_logger(sys.stderr, form=log.format, level=log.level)

    def serve(self, sockets: list[socket.socket], *, watch: bool) -> bool:
        """Serves until SIGTERM or SIGINT; returns whether all processes ended well."""
        memory, count = self._settings.memory, len(self._inboxes)
        sessions = memory.sessions.get_secret_value() if memory else ""
        if self._settings.limits != Limits() and not sessions.startswith("redis"):
            self._log.warning("Without Redis each of %d processes counts 'limits' for itself", count)
        # All processes have one secret for the page's forms, and share the memory of what is imported here.
        import_module("proxy.page.app")
        with tempfile.TemporaryDirectory(prefix="turnkeeper-") as folder:
            metrics.share_between_processes(folder)
            gc.collect()
            gc.freeze()
            supervisor = Supervisor(
                count,
                lambda index: self._work(index, supervisor, sockets, watch=watch and index == 0),
                reload=self._reload,
                on_exit=metrics.forget_process,
                on_loss=self._log_loss,
                on_stop=lambda: _close(sockets),
                timeout=self._settings.listen.grace + _DRAIN_TIMEOUT,
            )
            return supervisor.run()

    def _work(
        self, index: int, supervisor: "Supervisor", sockets: list[socket.socket], *, watch: bool
    ) -> None:
        app = build_app(self._settings, self._environ, metrics=Metrics(shared=True))
        reload = Reload(app, self._settings, self._path, self._environ)
        member = BusMember(app, Bus(self._inboxes, index), supervisor.lifeline)
        parent = os.getppid()
        tasks = [member.run]
        if watch:
            tasks.append(lambda: reload.watch(lambda: os.kill(parent, signal.SIGHUP)))
        process.serve(app, reload, self._settings, sockets, tasks)

    def _reload(self) -> bool:
        """Reads the configuration, and logs once what is wrong with it; returns whether it is good."""
        try:
            settings = load(self._path, self._environ)
            check_workers(settings, len(self._inboxes))
        except ConfigError as error:
            self._log.error("The configuration stays as it was:\n%s", error.message)
            return False
        except (Exception, SystemExit):  # noqa: BLE001 - all processes would end with this one
            self._log.exception("The configuration stays as it was; the new one could not be read")
            return False
        self._settings = settings
        return True

    def _log_loss(self, index: int, pid: int) -> None:
        self._log.error("Process %d (pid %d) has ended; it is started again", index + 1, pid)


class Supervisor:
    """Keeps ``count`` processes running, each of which calls ``work`` with its index.

    On SIGHUP ``reload`` is called, and the processes get the signal where it returns true. ``on_exit`` is
    called with the pid of each process that has ended, and ``on_loss`` with its index and pid where that was
    not wanted: it is replaced at once or, where it lived briefly, after a pause. On SIGTERM or SIGINT
    ``on_stop`` is called, and all processes have ``timeout`` seconds to end.
    """

    def __init__(  # noqa: PLR0913 - each hook is a moment in a process's life
        self,
        count: int,
        work: Callable[[int], None],
        *,
        reload: Callable[[], bool],
        on_exit: Callable[[int], None],
        on_loss: Callable[[int, int], None],
        on_stop: Callable[[], None],
        timeout: float,
    ) -> None:
        self._work = work
        self._reload = reload
        self._on_exit = on_exit
        self._on_loss = on_loss
        self._on_stop = on_stop
        self._timeout = timeout
        self._running: dict[int, tuple[int, float]] = {}
        """Of each pid, its index and when it was started."""
        self._missing = dict.fromkeys(range(count), 0.0)
        """When each missing process is due."""
        self._short_lives = dict.fromkeys(range(count), 0)
        self._stopping = False
        self.lifeline, self._lifeline_writer = os.pipe()

    def run(self) -> bool:
        """Runs until all processes have ended; returns whether all ended well."""
        signal.signal(signal.SIGCHLD, lambda *_: None)
        # A forked process inherits the mask, and takes signals once it can.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        well = True
        self._fork_missing()
        while self._running or not self._stopping:
            sign = signal.sigwait(SIGNALS)
            if sign in {signal.SIGTERM, signal.SIGINT}:
                self._stop()
            elif sign == signal.SIGHUP and not self._stopping and self._reload():
                self._send(signal.SIGHUP)
            elif sign == signal.SIGALRM and self._stopping:
                self._send(signal.SIGKILL)
            well = self._reap() and well
            self._fork_missing()
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        return well

    def _stop(self) -> None:
        if not self._stopping:
            self._stopping = True
            self._on_stop()
            signal.setitimer(signal.ITIMER_REAL, self._timeout, 1.0)
        self._send(signal.SIGTERM)

    def _send(self, sign: int) -> None:
        for pid in self._running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, sign)

    def _reap(self) -> bool:
        """Takes note of all that have ended; returns whether those that were to end did so well."""
        well = True
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return well
            if not pid:
                return well
            if pid not in self._running:  # an orphan: a container leaves all of its own to its first process
                continue
            index, start = self._running.pop(pid)
            self._on_exit(pid)
            if self._stopping:
                well = well and status == 0
                continue
            self._on_loss(index, pid)
            self._missing[index] = now = time.monotonic()
            if now - start < _SHORT_LIFE:
                self._short_lives[index] += 1
                self._missing[index] += _RESTARTS.pause(self._short_lives[index])
            else:
                self._short_lives[index] = 0

    def _fork_missing(self) -> None:
        """Forks the processes that are due, and sets the alarm for those that are not."""
        if self._stopping:
            return
        now = time.monotonic()
        for index, due in list(self._missing.items()):
            if due <= now:
                del self._missing[index]
                self._running[self._fork(index)] = index, now
        if self._missing:
            signal.setitimer(signal.ITIMER_REAL, max(0.01, min(self._missing.values()) - now))

    def _fork(self, index: int) -> int:
        pid = os.fork()
        if pid:
            return pid
        code = 1
        try:
            os.close(self._lifeline_writer)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self._work(index)
            code = 0
        except BaseException:  # noqa: BLE001 - whatever it is, this process must not go on as if it were the first
            exit_within_a_second()
            traceback.print_exc()
        finally:
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(OSError):
                    stream.flush()
            os._exit(code)


def _close(sockets: list[socket.socket]) -> None:
    # Each worker has its own: with these open, clients would reach a port that no process answers any more.
    for each in sockets:
        each.close()
