"""Where filters come from: those that are shipped, a configuration's own files, and installed packages."""

import importlib
import importlib.util
import pkgutil
import re
import sys
from collections.abc import Mapping, Sequence
from hashlib import sha256
from importlib.machinery import SourceFileLoader
from importlib.metadata import EntryPoint, entry_points
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
_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
_NO_NAME = "name the file as the filter, such as swear_words.py: small letters, digits and '_'"
_NO_FILTER = "this file defines no filter; write a class that derives from RequestFilter or AnswerFilter"
_FORM = "write a filter's name, or one name with its options: 'drop_messages: {sources: [silence]}'"
GROUP = "turnkeeper.filters"
_LONGEST = 300


class FilterRegistry(msgspec.Struct, frozen=True):
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
            raise PluginError(f"the filter {name!r} could not be loaded; see 'filters'")
        found = self._find(name, kind)
        if found is None:
            raise LookupError(self._unknown(name, kind))
        return found

    def names(self, kind: type[Filter]) -> tuple[str, ...]:
        """All filters of a kind that there are and that can be loaded, in alphabetical order."""
        path = importlib.import_module(self.package).__path__
        known = {module.name for module in pkgutil.iter_modules(path)} | set(self.files)
        announced = installed_names() if self.installed else set()
        return tuple(sorted(name for name in known | announced if self._has(name, kind)))

    def with_files(self, paths: Sequence[Path]) -> tuple["FilterRegistry", dict[int, str]]:
        """The shelf with a user's own files beside what it holds, and what is wrong with which of them."""
        files, broken, wrong = dict(self.files), set(self.broken), dict[int, str]()
        for i, path in enumerate(paths):
            try:
                files[path.stem] = self._module(path, files)
            except ValueError as error:
                wrong[i] = str(error)
                broken |= {path.stem} - set(files)
        return FilterRegistry(self.package, MappingProxyType(files), frozenset(broken), self.installed), wrong

    def _module(self, path: Path, files: Mapping[str, ModuleType]) -> ModuleType:
        name = path.stem
        if path.suffix != ".py" or not _NAME.fullmatch(name):
            raise ValueError(_NO_NAME)
        if name in files:
            raise ValueError("another file here has this name already; rename one")
        if self._shipped(name, Filter) is not None:
            raise ValueError("a filter of this name is shipped; rename the file")
        module = load_file(path)
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
        return None if self._shipped(name, Filter) else _filter_of(load_entry_point(name), kind)

    def _has(self, name: str, kind: type[Filter]) -> bool:
        try:
            return self._find(name, kind) is not None
        except PluginError:
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


def build_step(written: Any, kind: type[F], shelf: FilterRegistry) -> F:
    """The filter that a step asks for, built.

    Raises ValueError; pydantic's own, placed under the filter's name, for wrong options.
    """
    options = {written: None} if isinstance(written, str) else written
    if not isinstance(options, dict) or len(options) != 1:
        raise ValueError(_shape(options))
    ((name, given),) = options.items()
    try:
        found = shelf.named(name, kind)
    except LookupError as error:
        raise ValueError(error.args[0]) from None
    return _validated(name, found, {} if given is None else given)


def _shape(written: Any) -> str:
    """How a step is written, for one that is not one name."""
    if not isinstance(written, dict) or not written:
        return _FORM
    name, given = next(iter(written.items()))
    if given is None and is_name(name):
        return f"indent the options of {name!r} further than its name, or write '{name}: {{…}}' on one line"
    return "two steps stand here as one; begin each with '- '"


def _validated(name: str, found: type[F], given: Any) -> F:
    try:
        # The dictionary around the filter puts its name into the place of each error.
        return TypeAdapter(dict[str, found]).validate_python({name: given})[name]  # type: ignore[valid-type]
    except ValidationError:
        raise
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a user's check may raise anything
        # Not a mere ValueError, whose text is always shown: this one may quote the options.
        said = f"the filter {name!r} does not take these options: {describe_exception(error)}"
        raise PydanticCustomError("filter_failed", "{said}", {"said": said}) from None


class PluginError(ValueError):
    """Code that a user brought cannot be loaded; the message says what it did, on one line."""


def load_file(path: Path) -> ModuleType:
    """What a file defines now, whatever it defined before. Raises Broken."""
    # The last part is the filter's name, as with those that are shipped: explanations show it.
    folder = sha256(str(path.parent).encode("utf-8", "surrogatepass")).hexdigest()[:16]
    name = f"turnkeeper_filters_{folder}.{path.stem}"
    spec = spec_from_file_location(name, path, loader=_UncachedLoader(name, str(path)))
    if spec is None or spec.loader is None:  # pragma: no cover - a loader was given
        raise PluginError("this is no Python file")
    module, former = module_from_spec(spec), sys.modules.get(name)
    # While it runs, pydantic looks into sys.modules for the types and docstrings of the class.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - it is the user's code
        _put_back(name, former)
        raise PluginError(_load_error(error, str(path))) from None
    return module


def installed_names() -> set[str]:
    """The names of all filters that installed packages announce."""
    return set(entry_points(group=GROUP).names)


def load_entry_point(name: str) -> Any:
    """What the entry point of a name leads to, or ``None`` where there is none. Raises Broken."""
    found = list(entry_points(group=GROUP, name=name))
    packages = {point.dist.name if point.dist else point.value for point in found}
    if len(packages) > 1:
        listed = ", ".join(sorted(packages))
        raise PluginError(f"more than one installed package brings a filter {name!r}: {listed}")
    return _load(found[0]) if found else None


def describe_exception(error: BaseException) -> str:
    """An exception of a user's code on one line, cut where it is long."""
    text = " ".join(str(error.msg if isinstance(error, SyntaxError) else error).split())
    said = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return said if len(said) <= _LONGEST else f"{said[:_LONGEST]}…"


class _UncachedLoader(SourceFileLoader):
    """Compiles what the file holds: a cached form would hide an edit made within the same second."""

    def get_code(self, fullname: str) -> CodeType:  # noqa: ARG002 - the interface
        return self.source_to_code(self.get_data(self.path), self.path)


def _put_back(name: str, former: ModuleType | None) -> None:
    if former is None:
        del sys.modules[name]
    else:
        sys.modules[name] = former


def _load(point: EntryPoint) -> Any:
    try:
        return point.load()
    except (Exception, SystemExit) as error:  # noqa: BLE001 - it is the user's code
        raise PluginError(
            f"the installed filter {point.name!r} cannot be loaded: {describe_exception(error)}"
        ) from None


def _load_error(error: BaseException, file: str) -> str:
    """What went wrong, and in which line of the file."""
    line = error.lineno if isinstance(error, SyntaxError) and error.filename == file else _line(error, file)
    if line:
        return f"the file cannot be loaded: line {line}: {describe_exception(error)}"
    if isinstance(error, OSError):
        return f"the file cannot be read: {error.strerror}"
    return f"the file cannot be loaded: {describe_exception(error)}"


def _line(error: BaseException, file: str) -> int | None:
    lines = (frame.lineno for frame in extract_tb(error.__traceback__) if frame.filename == file)
    return next(lines, None)
