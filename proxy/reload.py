"""A configuration that changes while it is served."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from watchfiles import awatch

from proxy import assembly
from proxy.app import App
from proxy.configuration.load import load
from proxy.configuration.settings import Settings
from proxy.errors import ConfigError

_log = logging.getLogger("turnkeeper")


class Reload:
    """Brings a new configuration into a running application: whole, or not at all."""

    def __init__(self, app: App, settings: Settings, path: Path, environ: Mapping[str, str]) -> None:
        self._app = app
        self._settings = settings
        self._path = path
        self._environ = environ
        self._one_at_a_time = asyncio.Lock()

    async def now(self) -> None:
        """Reads the file again; what is wrong with it is reported, and then nothing changes."""
        async with self._one_at_a_time:
            try:
                self._take_over(await asyncio.to_thread(load, self._path, self._environ))
            except ConfigError as error:
                _log.error("The configuration stays as it was:\n%s", error.message)

    async def whenever_it_changes(self, tell: Callable[[], None] | None = None) -> None:
        """Reads the file again after every change to it, or to a filter that it names, until cancelled.

        With ``tell`` somebody else is told of the change instead. Folders that a later configuration brings
        in are not watched.
        """
        # Editors put a new file in the old one's place, which only the folder can tell.
        folders = {file.parent for file in self._files()}
        async for changes in awatch(*folders, recursive=False):
            if self._concerns(Path(changed) for _, changed in changes):
                if tell is None:
                    await self.now()
                else:
                    tell()

    def _concerns(self, changed: Iterable[Path]) -> bool:
        files = {file.resolve() for file in self._files()}
        return any(file.resolve() in files for file in changed)

    def _files(self) -> list[Path]:
        named = (self._path.parent / name for name in self._settings.filters)
        return [self._path, *(file for file in named if file.parent.is_dir())]

    def _take_over(self, settings: Settings) -> None:
        app = self._app
        app.swap(assembly.parts(settings, self._environ, app.metrics, app.traces))
        before, after = self._settings.listen, settings.listen
        if (before.host, before.port) != (after.host, after.port):
            _log.warning("%s: 'listen' has changed; a new address wants a restart.", self._path)
        self._settings = settings
        _log.info("The configuration was read again: %s", self._path)
