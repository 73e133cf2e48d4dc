"""One configuration served by several processes at one port."""

import gc
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Final

from proxy.application import build_app
from proxy.errors import ConfigError
from proxy.observe import metrics
from proxy.observe.log import line_by_line
from proxy.observe.metrics import Metrics
from proxy.serving import server
from proxy.serving.crew import Crew
from proxy.serving.membership import Membership
from proxy.serving.neighbours import Neighbours, inboxes
from proxy.serving.reload import Reload
from proxy.settings.load import load
from proxy.settings.settings import Limits, Settings

_DRAINED_WITHIN: Final = 12.0


def fit(settings: Settings, size: int) -> None:
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


class Fleet:
    """``size`` processes that behave as one."""

    def __init__(self, path: Path, settings: Settings, environ: Mapping[str, str], size: int) -> None:
        self._path = path
        self._settings = settings
        self._environ = environ
        self._among = inboxes(size)
        log = settings.log
        self._log = line_by_line(sys.stderr, form=log.format, level=log.level)

    def serve(self, sockets: list[socket.socket], *, watch: bool) -> bool:
        """Serves until SIGTERM or SIGINT; whether all processes ended well."""
        if _counted_apart(self._settings):
            self._log.warning(
                "Without Redis each of %d processes counts 'limits' for itself", len(self._among)
            )
        # All processes have one secret for the page's forms; and what is imported here is theirs together.
        import_module("proxy.page.house")
        with tempfile.TemporaryDirectory(prefix="turnkeeper-") as folder:
            metrics.share_between_processes(folder)
            gc.collect()
            gc.freeze()
            crew = Crew(
                len(self._among),
                lambda place: self._work(place, crew, sockets, watch=watch and place == 0),
                again=self._again,
                ended=metrics.forget_process,
                lost=self._lost,
                stopping=lambda: _close(sockets),
                within=self._settings.listen.grace + _DRAINED_WITHIN,
            )
            return crew.run()

    def _work(self, place: int, crew: Crew, sockets: list[socket.socket], *, watch: bool) -> None:
        app = build_app(self._settings, self._environ, metrics=Metrics(shared=True))
        again = Reload(app, self._settings, self._path, self._environ)
        member = Membership(app, Neighbours(self._among, place), crew.lifeline)
        first = os.getppid()
        beside = [member.keep]
        if watch:
            beside.append(lambda: again.whenever_it_changes(lambda: os.kill(first, signal.SIGHUP)))
        server.serve(app, again, self._settings, sockets, beside)

    def _again(self) -> bool:
        """Reads the configuration; whether the others should, too. What is wrong is told once."""
        try:
            settings = load(self._path, self._environ)
            fit(settings, len(self._among))
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
