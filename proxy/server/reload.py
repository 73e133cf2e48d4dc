"""Reloading the configuration while it is served."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from operator import attrgetter
from pathlib import Path
from typing import Final, TypeVar

from proxy.errors import ConfigError
from proxy.memory.recorder import WriteListener
from proxy.runtime import Runtime
from proxy.server.app import App
from proxy.settings.build import build_runtime
from proxy.settings.load import load
from proxy.settings.settings import Settings

T = TypeVar("T")

_LOOK_EVERY: Final = 0.25
"""How often files are checked, in seconds; a change counts once two checks agree on it."""
_READ_AT_START: Final = (
    "listen.host",
    "listen.port",
    "listen.grace",
    "listen.drain",
    "log.format",
    "log.level",
)
_log = logging.getLogger("turnkeeper")


class Reload:
    """Replaces the configuration of a running application: as a whole, or not at all.

    ``broadcast`` is called after that.
    """

    def __init__(
        self,
        app: App,
        settings: Settings,
        path: Path,
        environ: Mapping[str, str],
        *,
        notify: WriteListener | None = None,
    ) -> None:
        self.broadcast: Callable[[], None] = lambda: None
        self._app = app
        self._notify = notify
        self._first = self._settings = settings
        self._path = path
        self._environ = environ
        self._lock = asyncio.Lock()
        self._stamps = self._read_stamps()

    async def reload(self) -> None:
        """Reads the file again; if it is invalid, logs the errors and changes nothing."""
        async with self._lock:
            before = self._read_stamps()
            metrics = self._app.metrics

            def build() -> tuple[Settings, Runtime]:
                settings = load(self._path, self._environ)
                runtime = build_runtime(
                    settings, self._environ, metrics, self._app.traces, notify=self._notify
                )
                return settings, runtime

            # In a thread, since calls wait for the loop and reading the system's certificates takes a while.
            if built := await asyncio.to_thread(read_again, build):
                settings, runtime = built
                if runtime.memory:
                    await runtime.memory.open()
                self._app.swap(runtime)
                self._settings = settings
                differs = [
                    repr(name)
                    for name in _READ_AT_START
                    if attrgetter(name)(settings) != attrgetter(name)(self._first)
                ]
                if differs:
                    _log.warning(
                        "%s: a change of %s takes effect only after a restart", self._path, ", ".join(differs)
                    )
                _log.info("The configuration was read again: %s", self._path)
                self.broadcast()
            # Files that only the new configuration names were read just now.
            self._stamps = self._read_stamps() | before

    def has_changed(self) -> bool:
        """Whether a file of the configuration has changed since it was read."""
        return self._read_stamps() != self._stamps

    async def watch(self, on_change: Callable[[], None] | None = None) -> None:
        """Reloads after every change to the file, or to a filter that it names, until cancelled.

        With ``on_change``, calls this instead of reloading.
        """
        seen = self._stamps
        while True:
            await asyncio.sleep(_LOOK_EVERY)
            last, seen = seen, self._read_stamps()
            if seen != last:
                continue  # it may be half written
            before, self._stamps = self._stamps, seen
            if any(file in before and before[file] != stamp for file, stamp in seen.items()):
                if on_change is None:
                    await self.reload()
                else:
                    on_change()

    def _read_stamps(self) -> dict[Path, tuple[int, ...]]:
        """Returns the version of each file, links followed, as numbers; empty for a missing file."""
        filters = (self._path.parent / name for name in self._settings.filters)
        stamps: dict[Path, tuple[int, ...]] = {}
        for file in [self._path, *(file for file in filters if file.parent.is_dir())]:
            stamps[file] = ()
            with suppress(OSError):
                stat = file.stat()
                stamps[file] = stat.st_dev, stat.st_ino, stat.st_mtime_ns, stat.st_size
        return stamps


def read_again(read: Callable[[], T], own: logging.Logger = _log) -> T | None:
    """Returns the result of ``read``; if that raises, logs the error and returns ``None``."""
    try:
        return read()
    except ConfigError as error:
        own.error("The new configuration is not used, because it has errors:\n%s", error.message)
    except (Exception, SystemExit):  # noqa: BLE001 - a user's own filter may raise anything
        own.exception("The new configuration is not used, because it could not be read")
    return None
