"""One configuration served at one port by worker processes, with a background process beside them."""

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
from collections.abc import Callable, Iterator, Mapping
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

# A process that lives for less long is started again after a pause.
_SHORT_LIFE: Final = 5.0
# ``timeout`` and others signal a command, and then its group with it: that is no second signal.
_SAME_SIGNAL: Final = 0.5
_RESTARTS: Final = Backoff(shortest=1.0, longest=10.0)
_HOST_BYTES: Final = 8
_BACKGROUND: Final = -1
"""The index of the background process."""

CAN_FORK: Final = hasattr(os, "fork")
"""Whether this system has worker processes at all."""


def check_workers(settings: Settings, count: int) -> None:
    """Raises ConfigError where several processes could not serve this as one."""
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
    """``count`` processes that serve as one, and one in the background where the configuration needs it."""

    def __init__(self, path: Path, settings: Settings, environ: Mapping[str, str], count: int) -> None:
        self._path = path
        self._settings = settings
        self._environ = environ
        self._host = secrets.token_bytes(_HOST_BYTES)
        *self._inboxes, self._background_inbox = inboxes(count + 1)
        self._written = WrittenSessions(self._background_inbox)
        log = settings.log
        self._log = forking_logger(sys.stderr, form=log.format, level=log.level)

    def serve(self, sockets: list[socket.socket], *, watch: bool) -> bool:
        """Serves until SIGTERM or SIGINT; returns whether all processes ended well."""
        count = len(self._inboxes)
        if warning := unshared_limits(self._settings, count):
            self._log.warning("%s", warning)
        with self._shared() if count > 1 else contextlib.nullcontext():
            gc.collect()
            gc.freeze()
            supervisor = Supervisor(
                count,
                lambda index: self._work(index, supervisor, sockets, watch=watch and index == 0),
                lambda: needs_background_process(self._settings),
                reload=self._reload,
                on_exit=metrics.forget_process if count > 1 else lambda _: None,
                on_loss=self._log_loss,
                on_kill=self._log_kill,
                on_stop=lambda: _close(sockets),
                timeout=self._settings.listen.grace + process.END_WITHIN,
            )
            return supervisor.run()

    @contextlib.contextmanager
    def _shared(self) -> Iterator[None]:
        """What several processes that serve have in common."""
        # All processes have one secret for the page's forms, and share the memory of what is imported here.
        import_module("proxy.page.app")
        with tempfile.TemporaryDirectory(prefix="turnkeeper-") as folder:
            metrics.share_between_processes(folder)
            yield

    def _work(
        self, index: int, supervisor: "Supervisor", sockets: list[socket.socket], *, watch: bool
    ) -> None:
        if index == _BACKGROUND:
            _close(sockets)
            self._work_in_background(supervisor.lifeline)
            return
        notify = self._written.session_written
        numbers = Metrics(shared=len(self._inboxes) > 1)
        app = build_app(self._settings, self._environ, metrics=numbers, notify=notify)
        app.counts_background = index == 0
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
            supervisor.lifeline,
            host=self._host,
            on_reload=on_reload_elsewhere if index == 0 else None,
        )
        tasks = [member.run]
        if index == 0:
            reload.broadcast = member.reloaded
        if watch:
            tasks.append(lambda: reload.watch(reload_all))
        process.serve(app, reload, self._settings, sockets, tasks)
        self._written.flush()

    def _work_in_background(self, lifeline: int) -> None:
        give_way()
        signals.block()

        def reload() -> tuple[Settings, Runtime] | None:
            # What is wrong is logged by the servers, which read the same.
            with contextlib.suppress(Exception, SystemExit):
                settings = load(self._path, self._environ)
                return settings, build_runtime(settings, self._environ)
            return None

        link = background.ServersLink(self._background_inbox, self._inboxes, lifeline)
        runtime = build_runtime(self._settings, self._environ)
        background.run(self._settings, runtime, reload, link.working)

    def _reload(self) -> bool:
        """Reads the configuration, and logs once what is wrong with it; returns whether it is good."""

        def read() -> Settings:
            settings = load(self._path, self._environ)
            check_workers(settings, len(self._inboxes))
            return settings

        settings = read_again(read, self._log)
        self._settings = settings or self._settings
        return settings is not None

    def _log_loss(self, index: int, pid: int) -> None:
        name = "The background process" if index == _BACKGROUND else f"Process {index + 1}"
        if index != _BACKGROUND:
            self._written.names_lost()
        self._log.error("%s (pid %d) has ended; it is started again", name, pid)

    def _log_kill(self, index: int, pid: int) -> None:
        self._log.error(
            "Process %d (pid %d) did not end in time, and was killed; what it had not written is lost",
            index + 1,
            pid,
        )


class Supervisor:
    """Keeps ``count`` processes running, each of which calls ``work`` with its index.

    A background process runs beside them, with an index of its own, while ``needs_background`` is true. On
    SIGHUP ``reload`` is called, and the processes get the signal where it returns true. ``on_exit`` is called
    with the pid of each process that has ended, and ``on_loss`` with its index and pid where that was not
    wanted: it is replaced at once or, where it lived briefly, after a pause. On SIGTERM or SIGINT ``on_stop``
    is called, and all processes have ``timeout`` seconds to end, the background process last; a second
    signal, half a second later or more, ends them at once. ``on_kill`` is called with those that serve and
    had to be killed.
    """

    def __init__(  # noqa: PLR0913 - each hook is a moment in a process's life
        self,
        count: int,
        work: Callable[[int], None],
        needs_background: Callable[[], bool] = lambda: False,
        *,
        reload: Callable[[], bool],
        on_exit: Callable[[int], None],
        on_loss: Callable[[int, int], None],
        on_kill: Callable[[int, int], None],
        on_stop: Callable[[], None],
        timeout: float,
    ) -> None:
        self._work = work
        self._needs_background = needs_background
        self._reload = reload
        self._on_exit = on_exit
        self._on_loss = on_loss
        self._on_kill = on_kill
        self._on_stop = on_stop
        self._timeout = timeout
        self._running: dict[int, tuple[int, float]] = {}
        """Of each pid, its index and when it was started."""
        self._wanted = {*range(count)}
        self._missing = dict.fromkeys(self._wanted, 0.0)
        """When each missing process is due."""
        self._short_lives: Counter[int] = Counter()
        self._stopping = False
        self._stopped_at = 0.0
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
            if not self._stopping:
                self._fork_missing()
            elif {index for index, _ in self._running.values()} == {_BACKGROUND}:
                self._send(signal.SIGTERM)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        return well

    def _stop(self) -> None:
        if self._stopping:
            if time.monotonic() - self._stopped_at > _SAME_SIGNAL:
                self._send(signal.SIGKILL)
            return
        self._stopping, self._stopped_at = True, time.monotonic()
        self._on_stop()
        signal.setitimer(signal.ITIMER_REAL, self._timeout, 1.0)
        self._send(signal.SIGTERM, but=_BACKGROUND)

    def _send(self, sign: int, *, but: int | None = None) -> None:
        for pid, (index, _) in self._running.items():
            if index != but:
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
                # However the background process ends, what it has not done is due in the store.
                if index != _BACKGROUND and status:
                    well = False
                    if status == signal.SIGKILL:
                        self._on_kill(index, pid)
                continue
            if index not in self._wanted:
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
        self._want_background(self._needs_background())
        now = time.monotonic()
        for index, due in list(self._missing.items()):
            if due <= now:
                del self._missing[index]
                self._running[self._fork(index)] = index, now
        if self._missing:
            signal.setitimer(signal.ITIMER_REAL, max(0.01, min(self._missing.values()) - now))

    def _want_background(self, wanted: bool) -> None:  # noqa: FBT001 - the one thing that it says
        """Has the background process run, or end, after a reload."""
        if wanted == (_BACKGROUND in self._wanted):
            return
        running = [pid for pid, (index, _) in self._running.items() if index == _BACKGROUND]
        if wanted:
            self._wanted.add(_BACKGROUND)
            self._missing[_BACKGROUND] = 0.0
        else:
            self._wanted.discard(_BACKGROUND)
            self._missing.pop(_BACKGROUND, None)
            for pid in running:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)

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
