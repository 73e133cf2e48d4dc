"""Where filters come from: those that are shipped, a configuration's own files, and installed packages."""

import importlib
import importlib.util
import pkgutil
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any, TypeVar

import msgspec

from filters.base import AnswerFilter, Filter, RequestFilter
from proxy.configuration import plugin
from proxy.configuration.plugin import Broken
from proxy.configuration.word import alternatives, quoted

F = TypeVar("F", bound=Filter)

_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
_NO_NAME = "name the file as the filter, such as swear_words.py: small letters, digits and '_'"
_NO_FILTER = "this file defines no filter; write a class that derives from RequestFilter or AnswerFilter"


class Shelf(msgspec.Struct, frozen=True):
    """Filters by name. Only what is asked for is imported; a name is looked for in this order.

    ``package`` holds what is shipped; ``files`` are modules made from a configuration's own files, and
    ``broken`` the names of those that could not be made; with ``installed``, packages may bring more.
    """

    package: str = "filters"
    files: Mapping[str, ModuleType] = MappingProxyType({})
    broken: frozenset[str] = frozenset()
    installed: bool = True

    def named(self, name: str, kind: type[F]) -> type[F]:
        """The filter of a kind that bears this name.

        Raises LookupError that says what there is, and Broken where a user's own cannot be loaded.
        """
        if name in self.broken:
            raise Broken(f"the filter {name!r} could not be loaded; see 'filters'")
        found = self._find(name, kind)
        if found is None:
            raise LookupError(self._unknown(name, kind))
        return found

    def names(self, kind: type[Filter]) -> tuple[str, ...]:
        """All filters of a kind that there are and that can be loaded, in alphabetical order."""
        path = importlib.import_module(self.package).__path__
        known = {module.name for module in pkgutil.iter_modules(path)} | set(self.files)
        announced = plugin.installed() if self.installed else set()
        return tuple(sorted(name for name in known | announced if self._has(name, kind)))

    def with_files(self, paths: Sequence[Path]) -> tuple["Shelf", dict[int, str]]:
        """The shelf with a user's own files beside what it holds, and what is wrong with which of them."""
        files, broken, wrong = dict(self.files), set(self.broken), dict[int, str]()
        for i, path in enumerate(paths):
            try:
                files[path.stem] = self._module(path, files)
            except ValueError as error:
                wrong[i] = str(error)
                broken |= {path.stem} - set(files)
        return Shelf(self.package, MappingProxyType(files), frozenset(broken), self.installed), wrong

    def _module(self, path: Path, files: Mapping[str, ModuleType]) -> ModuleType:
        name = path.stem
        if path.suffix != ".py" or not _NAME.fullmatch(name):
            raise ValueError(_NO_NAME)
        if name in files:
            raise ValueError("another file here has this name already; rename one")
        if self._shipped(name, Filter) is not None:
            raise ValueError("a filter of this name is shipped; rename the file")
        module = plugin.from_file(path)
        if _filter_of(module, Filter) is None:
            raise ValueError(_NO_FILTER)
        return module

    def _find(self, name: str, kind: type[F]) -> type[F] | None:
        if not _NAME.fullmatch(name):
            return None
        if name in self.files:
            return _filter_of(self.files[name], kind)
        if (shipped := self._shipped(name, kind)) is not None or not self.installed:
            return shipped
        return None if self._shipped(name, Filter) else _filter_of(plugin.from_package(name), kind)

    def _has(self, name: str, kind: type[Filter]) -> bool:
        try:
            return self._find(name, kind) is not None
        except Broken:
            return False

    def _shipped(self, name: str, kind: type[F]) -> type[F] | None:
        if importlib.util.find_spec(f"{self.package}.{name}") is None:
            return None
        return _filter_of(importlib.import_module(f"{self.package}.{name}"), kind)

    def _unknown(self, name: str, kind: type[Filter]) -> str:
        other, side = (AnswerFilter, "answer") if kind is RequestFilter else (RequestFilter, "request")
        if self._has(name, other):
            return f"the filter {name!r} belongs under '{side}:'"
        return f"no filter named{quoted(name)}{alternatives(name, self.names(kind))}"


def _filter_of(source: Any, kind: type[F]) -> type[F] | None:
    """The filter that a module defines itself; an entry point may also lead to the class."""
    if isinstance(source, type):
        return source if issubclass(source, kind) else None
    values = vars(source).values() if isinstance(source, ModuleType) else ()
    found = (value for value in values if isinstance(value, type) and issubclass(value, kind))
    return next((each for each in found if _is_own(each, source.__name__)), None)


def _is_own(found: type[Filter], module: str) -> bool:
    return found.__module__ == module != Filter.__module__ and not found.__name__.startswith("_")
