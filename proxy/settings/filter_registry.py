"""The filters that a configuration may name: shipped ones, its own files, and installed packages."""

import importlib
import importlib.util
import pkgutil
import re
import sys
from collections.abc import Mapping, Sequence
from hashlib import sha256
from importlib.machinery import SourceFileLoader
from importlib.metadata import entry_points
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from traceback import extract_tb
from types import CodeType, MappingProxyType, ModuleType
from typing import Any, TypeVar

import msgspec
from pydantic import TypeAdapter, ValidationError
from pydantic_core import PydanticCustomError

from filters.base import AnswerFilter, Filter, RequestFilter
from proxy.settings.diagnostics import alternatives, is_name, quoted

F = TypeVar("F", bound=Filter)

ENTRY_POINTS = "turnkeeper.filters"
BROKEN = "could not be loaded; see 'filters'"
OWN_FILES = "turnkeeper_filters_"
"""The prefix of modules' names that are loaded from a user's own files."""

_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
_FILE_NAME = "name the file as the filter, such as swear_words.py: small letters, digits and '_'"
_NO_FILTER = "this file defines no filter; write a class that derives from RequestFilter or AnswerFilter"
_NO_METHOD = (
    "this filter changes nothing; define apply or set (RequestFilter), or open or first (AnswerFilter)"
)
_STEP_FORM = "write a filter's name, or one name with its options: 'drop_messages: {sources: [silence]}'"
_MAX_MESSAGE = 300


class PluginError(ValueError):
    """Raised where a user's own filter cannot be loaded; the message says why, on one line."""


class FilterRegistry(msgspec.Struct, frozen=True):
    """Filters by name, which are imported at the first look-up.

    A name is searched in ``files``, the modules of a configuration's own files, then in ``package`` with the
    shipped filters, and with ``installed`` in the entry points of installed packages. ``broken`` are the
    names of files that could not be loaded.
    """

    package: str = "filters"
    files: Mapping[str, ModuleType] = MappingProxyType({})
    broken: frozenset[str] = frozenset()
    installed: bool = True

    def get(self, name: str, kind: type[F]) -> type[F]:
        """Finds the filter of a kind by its name.

        Raises LookupError, which lists the alternatives, and PluginError where a user's own filter cannot be
        loaded.
        """
        if name in self.broken:
            raise PluginError(f"the filter {name!r} {BROKEN}")
        filter_class = self._find(name, kind)
        if filter_class is not None:
            return filter_class
        other, side = (AnswerFilter, "answer") if kind is RequestFilter else (RequestFilter, "request")
        if self._has(name, other):
            raise LookupError(f"the filter {name!r} belongs under '{side}:'")
        raise LookupError(f"no filter named{quoted(name)}{alternatives(name, self.names(kind))}")

    def names(self, kind: type[Filter]) -> tuple[str, ...]:
        """The names of all filters of a kind that can be loaded, in alphabetical order."""
        path = importlib.import_module(self.package).__path__
        names = {module.name for module in pkgutil.iter_modules(path)} | set(self.files)
        if self.installed:
            names |= set(entry_points(group=ENTRY_POINTS).names)
        return tuple(sorted(name for name in names if self._has(name, kind)))

    def with_files(self, paths: Sequence[Path]) -> tuple["FilterRegistry", dict[int, str]]:
        """Loads a user's own files; returns the registry with them, and the errors by position."""
        files, broken, errors = dict(self.files), set(self.broken), dict[int, str]()
        for i, path in enumerate(paths):
            try:
                files[path.stem] = self._load_own(path, files)
            except ValueError as error:
                errors[i] = str(error)
                broken |= {path.stem} - set(files)
        return FilterRegistry(
            self.package, MappingProxyType(files), frozenset(broken), self.installed
        ), errors

    def _load_own(self, path: Path, files: Mapping[str, ModuleType]) -> ModuleType:
        name = path.stem
        if path.suffix != ".py" or not _NAME.fullmatch(name):
            raise ValueError(_FILE_NAME)
        if name in files:
            raise ValueError("another file here has this name already; rename one")
        if self._shipped(name, Filter) is not None:
            raise ValueError("a filter of this name is shipped; rename the file")
        module = load_file(path)
        filter_class = _filter_in(module, Filter)
        if filter_class is None:
            raise ValueError(_NO_FILTER)
        if not _does_anything(filter_class):
            raise ValueError(_NO_METHOD)
        return module

    def _has(self, name: str, kind: type[Filter]) -> bool:
        try:
            return self._find(name, kind) is not None
        except PluginError:
            return False

    def _find(self, name: str, kind: type[F]) -> type[F] | None:
        if not _NAME.fullmatch(name):
            return None
        if name in self.files:
            return _filter_in(self.files[name], kind)
        if (shipped := self._shipped(name, kind)) is not None or not self.installed:
            return shipped
        return None if self._shipped(name, Filter) else _filter_in(load_entry_point(name), kind)

    def _shipped(self, name: str, kind: type[F]) -> type[F] | None:
        if importlib.util.find_spec(f"{self.package}.{name}") is None:
            return None
        return _filter_in(importlib.import_module(f"{self.package}.{name}"), kind)


def _filter_in(source: Any, kind: type[F]) -> type[F] | None:
    """The filter that a module defines, or a class itself, from an entry point; ``None`` if there is none."""
    if isinstance(source, type):
        return source if issubclass(source, kind) else None
    for value in vars(source).values() if isinstance(source, ModuleType) else ():
        if isinstance(value, type) and issubclass(value, kind):
            is_own = value.__module__ == source.__name__ != Filter.__module__
            if is_own and not value.__name__.startswith("_"):
                return value
    return None


def _does_anything(kind: type[Filter]) -> bool:
    """Whether a filter overrides one of the methods, which by default change nothing."""
    bases = {RequestFilter: ("apply", "set"), AnswerFilter: ("open", "first")}
    return any(
        getattr(kind, name) is not getattr(base, name)
        for base, names in bases.items()
        if issubclass(kind, base)
        for name in names
    )


def build_step(written: Any, kind: type[F], registry: FilterRegistry) -> F:
    """Builds the filter of one step, which is a filter's name, or a mapping of one name to its options.

    Raises ValueError; for wrong options ValidationError, with the filter's name in its path.
    """
    step = {written: None} if isinstance(written, str) else written
    if not isinstance(step, dict) or not step:
        raise ValueError(_STEP_FORM)
    name, options = next(iter(step.items()))
    if len(step) > 1:
        if options is None and is_name(name):
            indent = f"indent the options of {name!r} further than its name"
            raise ValueError(f"{indent}, or write '{name}: {{…}}' on one line")
        raise ValueError("two steps are written as one; begin each with '- '")
    try:
        filter_class = registry.get(name, kind)
    except LookupError as error:
        raise ValueError(error.args[0]) from None
    try:
        # With a dictionary, the path of each error contains the filter's name.
        adapter = TypeAdapter(dict[str, filter_class])  # type: ignore[valid-type]
        return adapter.validate_python({name: {} if options is None else options})[name]
    except ValidationError:
        raise
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a user's check may raise anything
        # Not a ValueError, whose message is always shown: this one may quote the options.
        message = f"the filter {name!r} does not take these options: {describe_exception(error)}"
        raise PydanticCustomError("filter_failed", "{message}", {"message": message}) from None


# --- a user's own code


def load_file(path: Path) -> ModuleType:
    """Loads the module in a file, again if it was loaded before. Raises PluginError."""
    # The last part of the module's name is the filter's name, which explanations show.
    folder = sha256(str(path.parent).encode("utf-8", "surrogatepass")).hexdigest()[:16]
    name = f"{OWN_FILES}{folder}.{path.stem}"
    spec = spec_from_file_location(name, path, loader=_UncachedLoader(name, str(path)))
    if spec is None or spec.loader is None:  # pragma: no cover - a loader was given
        raise PluginError("this is no Python file")
    module, previous = module_from_spec(spec), sys.modules.get(name)
    # Pydantic looks up the class's types and docstrings in sys.modules during the import.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - it is the user's code
        if previous is None:
            del sys.modules[name]
        else:
            sys.modules[name] = previous
        raise PluginError(_load_error(error, str(path))) from None
    return module


class _UncachedLoader(SourceFileLoader):
    """Compiles the file each time: the cache would miss an edit within the same second."""

    def get_code(self, fullname: str) -> CodeType:  # noqa: ARG002 - the interface
        return self.source_to_code(self.get_data(self.path), self.path)


def _load_error(error: BaseException, file: str) -> str:
    """The message about a file that cannot be loaded, with the line if it is known."""
    if isinstance(error, SyntaxError) and error.filename == file:
        line = error.lineno
    else:
        frames = (frame for frame in extract_tb(error.__traceback__) if frame.filename == file)
        line = next((frame.lineno for frame in frames), None)
    if line:
        return f"the file cannot be loaded: line {line}: {describe_exception(error)}"
    if isinstance(error, OSError):
        return f"the file cannot be read: {error.strerror}: {file}"
    return f"the file cannot be loaded: {describe_exception(error)}"


def load_entry_point(name: str) -> Any:
    """Loads the entry point with this name from installed packages, or ``None``. Raises PluginError."""
    points = list(entry_points(group=ENTRY_POINTS, name=name))
    packages = {point.dist.name if point.dist else point.value for point in points}
    if len(packages) > 1:
        listed = ", ".join(sorted(packages))
        raise PluginError(f"more than one installed package brings a filter {name!r}: {listed}")
    if not points:
        return None
    try:
        return points[0].load()
    except (Exception, SystemExit) as error:  # noqa: BLE001 - it is the user's code
        why = describe_exception(error)
        raise PluginError(f"the installed filter {name!r} cannot be loaded: {why}") from None


def describe_exception(error: BaseException) -> str:
    """An exception of a user's code as one line, shortened if it is long."""
    text = " ".join(str(error.msg if isinstance(error, SyntaxError) else error).split())
    described = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return described if len(described) <= _MAX_MESSAGE else f"{described[:_MAX_MESSAGE]}…"
