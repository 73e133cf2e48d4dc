"""A configuration that changes while it is served."""

import asyncio
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from operator import attrgetter
from pathlib import Path
from typing import Final

from watchfiles import awatch

from proxy.errors import ConfigError
from proxy.observe.metrics import Metrics
from proxy.runtime import Runtime
from proxy.server.app import App
from proxy.settings.build import build_runtime
from proxy.settings.load import load
from proxy.settings.settings import Settings

_log = logging.getLogger("turnkeeper")
_LOOKED_EVERY: Final = 5_000
"""Milliseconds after which files are looked at though nothing was told of them."""
_READ_AT_THE_START: Final = ("listen.host", "listen.port", "listen.grace", "log.format", "log.level")


class Reload:
    """Brings a new configuration into a running application: whole, or not at all."""

    def __init__(self, app: App, settings: Settings, path: Path, environ: Mapping[str, str]) -> None:
        self._app = app
        self._first = self._settings = settings
        self._path = path
        self._environ = environ
        self._one_at_a_time = asyncio.Lock()
        self._seen = self._contents()

    async def reload(self) -> None:
        """Reads the file again; what is wrong with it is reported, and then nothing changes."""
        async with self._one_at_a_time:
            seen = self._contents()
            try:
                # In a thread: callers wait on the loop, and to read a machine's certificates takes a while.
                settings, runtime = await asyncio.to_thread(self._read, self._app.metrics)
            except ConfigError as error:
                _log.error("The configuration stays as it was:\n%s", error.message)
            except (Exception, SystemExit):  # noqa: BLE001 - what users bring may do anything when it is read
                _log.exception("The configuration stays as it was; the new one could not be read")
            else:
                if runtime.memory:
                    await runtime.memory.open()
                self._take_over(settings, runtime)
            # A file that is named only now was read just now.
            self._seen = self._contents() | seen

    async def watch(self, tell: Callable[[], None] | None = None) -> None:
        """Reads the file again after every change to it, or to a filter that it names, until cancelled.

        With ``tell`` somebody else is told of the change instead. What no folder's watch tells of, as on some
        mounts, or behind a link that leads elsewhere now, is seen five seconds later.
        """
        # It would tell of each change in a folder, of its own line in a log there too, which is one more.
        logging.getLogger("watchfiles").setLevel(logging.WARNING)
        async for _ in awatch(
            *self._folders(), recursive=False, rust_timeout=_LOOKED_EVERY, yield_on_timeout=True
        ):
            if self._has_changed():
                if tell is None:
                    await self.reload()
                else:
                    tell()

    def _folders(self) -> set[Path]:
        """What is watched: a link may lead through a folder that nobody may list."""
        leading = {folder for file in self._files() for folder in _leading_to(file.absolute())}
        return {folder for folder in leading if os.access(folder, os.R_OK)}

    def _has_changed(self) -> bool:
        """Whether a file is other than it was when this was last asked, or when it was named since then."""
        before, self._seen = self._seen, self._contents()
        return any(file in before and before[file] != content for file, content in self._seen.items())

    def _contents(self) -> dict[Path, tuple[int, ...]]:
        return {file: _content(file) for file in self._files()}

    def _files(self) -> list[Path]:
        named = (self._path.parent / name for name in self._settings.filters)
        return [self._path, *(file for file in named if file.parent.is_dir())]

    def _read(self, metrics: Metrics) -> tuple[Settings, Runtime]:
        settings = load(self._path, self._environ)
        return settings, build_runtime(settings, self._environ, metrics, self._app.traces)

    def _take_over(self, settings: Settings, runtime: Runtime) -> None:
        self._app.swap(runtime)
        self._settings = settings
        if late := [repr(name) for name in _READ_AT_THE_START if _differ(name, self._first, settings)]:
            _log.warning("%s: a change of %s wants a restart", self._path, ", ".join(late))
        _log.info("The configuration was read again: %s", self._path)


def _leading_to(file: Path) -> Iterator[Path]:
    """The folders in which a file may become another: its own, and those of all links on the way to it."""
    # Editors put a new file in the old one's place, and others a new link, which only the folder can tell.
    yield file.parent
    for part in (file, *file.parents):
        if part.is_symlink():
            yield part.parent
            yield from _leading_to(part.parent / part.readlink())


def _content(file: Path) -> tuple[int, ...]:
    """Tells what a file holds from what it held, whichever links lead to it; nothing where it is gone."""
    try:
        found = file.stat()
    except OSError:
        return ()
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size


def _differ(name: str, one: Settings, other: Settings) -> bool:
    value = attrgetter(name)
    return bool(value(one) != value(other))
