"""Serves one configuration at one port by worker processes, with a background process beside them."""

import contextlib
import gc
import os
import secrets
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Final

from proxy.background.priority import give_way
from proxy.circuit import Backoff
from proxy.errors import ConfigError
from proxy.observe import metrics
from proxy.observe.log import exit_within_a_second, forking_logger
from proxy.observe.metrics import Metrics
from proxy.runtime import Runtime
from proxy.server import background, process, signals
from proxy.server.app import build_app
from proxy.server.bus import Bus, WrittenSessions, inboxes
from proxy.server.member import BusMember
from proxy.server.reload import Reload, read_again
from proxy.server.signals import SIGNALS
from proxy.settings.build import build_runtime, needs_background_process
from proxy.settings.load import load
from proxy.settings.settings import Settings, unshared_limits

# In seconds. A process that ends sooner is restarted after a pause.
_SHORT_LIFE: Final = 5.0
# In seconds. ``timeout`` and others signal a command, and then its whole group, which counts as one signal.
_SAME_SIGNAL: Final = 0.5
_RESTARTS: Final = Backoff(shortest=1.0, longest=10.0)
_HOST_BYTES: Final = 8
_BACKGROUND: Final = -1
"""The index of the background process."""

CAN_FORK: Final = hasattr(os, "fork")
"""Whether this system supports worker processes."""


def check_workers(settings: Settings, count: int) -> None:
    """Raises ConfigError if this many processes cannot be forked, or cannot share the memory."""
    if count > 1 and not CAN_FORK:
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
    """``count`` processes that serve as one, and a background process if the configuration needs it.

    A process that ends is replaced at once or, after a short life, after a pause. On SIGHUP all reload the
    configuration. On SIGTERM or SIGINT they have the grace of calls and END_WITHIN seconds to end, the
    background process last. A second signal, at least half a second later, kills them at once.
    """

    def __init__(self, path: Path, settings: Settings, environ: Mapping[str, str], count: int) -> None:
        self._path = path
        self._settings = settings
        self._environ = environ
        self._count = count
        self._timeout = settings.listen.grace + process.END_WITHIN
        self._host = secrets.token_bytes(_HOST_BYTES)
        *self._inboxes, self._background_inbox = inboxes(count + 1)
        self._written = WrittenSessions(self._background_inbox)
        self._sockets: list[socket.socket] = []
        self._watches = False
        self._running: dict[int, tuple[int, float]] = {}
        """The index of each process and the time of its start, by pid."""
        self._due: dict[int, float] = {}
        """The time at which each lost process is restarted, by its index."""
        self._short_lives: Counter[int] = Counter()
        self._stopping = False
        self._lifeline, self._lifeline_writer = os.pipe()
        self._log = forking_logger(sys.stderr, form=settings.log.format, level=settings.log.level)

    def serve(self, sockets: list[socket.socket], *, watch: bool) -> bool:
        """Serves until SIGTERM or SIGINT; returns whether all processes ended without failure."""
        self._sockets, self._watches = sockets, watch
        if warning := unshared_limits(self._settings, self._count):
            self._log.warning("%s", warning)
        with contextlib.ExitStack() as stack:
            if self._count > 1:
                # All processes need the same secret for the page's forms, and share the imported modules.
                import_module("proxy.page.app")
                folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="turnkeeper-"))
                metrics.share_between_processes(folder)
            gc.collect()
            gc.freeze()
            signal.signal(signal.SIGCHLD, lambda *_: None)
            # A forked process inherits the mask, and unblocks signals once it can handle them.
            mask = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
            well, stopped_at = True, 0.0
            self._fork_missing()
            while self._running or not self._stopping:
                sign = signal.sigwait(SIGNALS)
                is_end = sign in {signal.SIGTERM, signal.SIGINT}
                if is_end and not self._stopping:
                    self._stopping, stopped_at = True, time.monotonic()
                    self._close_sockets()
                    signal.setitimer(signal.ITIMER_REAL, self._timeout, 1.0)
                    self._send(signal.SIGTERM, to=range(self._count))
                elif is_end and time.monotonic() - stopped_at > _SAME_SIGNAL:
                    self._send(signal.SIGKILL)
                elif sign == signal.SIGHUP and not self._stopping and self._reload():
                    self._send(signal.SIGHUP)
                elif sign == signal.SIGALRM and self._stopping:
                    self._send(signal.SIGKILL)
                well = self._reap() and well
                if not self._stopping:
                    self._fork_missing()
                elif {index for index, _ in self._running.values()} == {_BACKGROUND}:
                    self._send(signal.SIGTERM)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            return well

    # --- in the first process

    def _reload(self) -> bool:
        """Reads the configuration, and logs its errors once; returns whether it is valid."""

        def read() -> Settings:
            settings = load(self._path, self._environ)
            check_workers(settings, self._count)
            return settings

        settings = read_again(read, self._log)
        self._settings = settings or self._settings
        return settings is not None

    def _send(self, sign: int, *, to: Container[int] | None = None) -> None:
        """Sends a signal to all processes, or only to those with the indexes in ``to``."""
        for pid, (index, _) in self._running.items():
            if to is None or index in to:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, sign)

    def _reap(self) -> bool:
        """Removes ended processes; returns whether all that were told to end did so without failure."""
        well = True
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return well
            if not pid:
                return well
            if pid not in self._running:  # an orphan, which a container leaves to its first process
                continue
            index, start = self._running.pop(pid)
            if self._count > 1:
                metrics.forget_process(pid)
            if not self._stopping:
                if index in self._wanted:
                    self._note_loss(index, pid, start)
            # A failing end of the background process loses nothing: open work stays due in the store.
            elif index != _BACKGROUND and status:
                well = False
                if status == signal.SIGKILL:
                    self._log.error(
                        "Process %d (pid %d) did not end in time, and was killed; what it had not written is"
                        " lost",
                        index + 1,
                        pid,
                    )

    def _note_loss(self, index: int, pid: int, start: float) -> None:
        """Schedules the restart of a lost process, at once or, after a short life, after a pause."""
        name = "The background process" if index == _BACKGROUND else f"Process {index + 1}"
        if index != _BACKGROUND:
            self._written.names_lost()
        self._log.error("%s (pid %d) has ended; it is started again", name, pid)
        self._due[index] = now = time.monotonic()
        if now - start < _SHORT_LIFE:
            self._short_lives[index] += 1
            self._due[index] += _RESTARTS.pause(self._short_lives[index])
        else:
            self._short_lives[index] = 0

    @property
    def _wanted(self) -> Sequence[int]:
        """The indexes of the processes that the configuration needs."""
        serving = range(self._count)
        return [*serving, _BACKGROUND] if needs_background_process(self._settings) else serving

    def _fork_missing(self) -> None:
        """Forks missing processes that are due, sets an alarm for later ones, and ends unneeded ones."""
        now, wanted = time.monotonic(), self._wanted
        running = {index for index, _ in self._running.values()}
        self._send(signal.SIGTERM, to=running - {*wanted})
        pauses = []
        for index in wanted:
            pause = self._due.get(index, 0.0) - now
            if index not in running and pause <= 0:
                self._running[self._fork(index)] = index, now
            elif index not in running:
                pauses.append(pause)
        if pauses:
            signal.setitimer(signal.ITIMER_REAL, max(0.01, min(pauses)))

    def _fork(self, index: int) -> int:
        pid = os.fork()
        if pid:
            return pid
        code = 1
        try:
            os.close(self._lifeline_writer)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            if index == _BACKGROUND:
                self._work_in_background()
            else:
                self._work(index)
            code = 0
        except BaseException:  # noqa: BLE001 - this process must never continue as if it were the first
            exit_within_a_second()
            traceback.print_exc()
        finally:
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(OSError):
                    stream.flush()
            os._exit(code)

    # --- in the others

    def _work(self, index: int) -> None:
        is_first, notify = index == 0, self._written.session_written
        numbers = Metrics(shared=self._count > 1)
        app = build_app(self._settings, self._environ, metrics=numbers, notify=notify)
        app.counts_background = is_first
        reload = Reload(app, self._settings, self._path, self._environ, notify=notify)
        parent = os.getppid()

        def reload_all() -> None:
            os.kill(parent, signal.SIGHUP)

        def on_reload_elsewhere() -> None:
            if reload.has_changed():
                reload_all()

        member = BusMember(
            app,
            Bus(self._inboxes, index),
            self._lifeline,
            host=self._host,
            on_reload=on_reload_elsewhere if is_first else None,
        )
        tasks = [member.run]
        if is_first:
            reload.broadcast = member.reloaded
            if self._watches:
                tasks.append(lambda: reload.watch(reload_all))
        process.serve(app, reload, self._settings, self._sockets, tasks)
        self._written.flush()

    def _work_in_background(self) -> None:
        self._close_sockets()
        give_way()
        signals.block()

        def reload() -> tuple[Settings, Runtime] | None:
            # The servers read the same file and log its errors.
            with contextlib.suppress(Exception, SystemExit):
                settings = load(self._path, self._environ)
                return settings, build_runtime(settings, self._environ)
            return None

        link = background.ServersLink(self._background_inbox, self._inboxes, self._lifeline)
        runtime = build_runtime(self._settings, self._environ)
        background.run((self._settings, runtime), reload, link.working)

    def _close_sockets(self) -> None:
        # Workers have copies. If these stayed open, clients could connect to a port that no process serves.
        for each in self._sockets:
            each.close()
