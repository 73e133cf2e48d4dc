"""Filters that users bring: a Python file, or an installed package's entry point, as what it defines."""

import sys
from hashlib import sha256
from importlib.machinery import SourceFileLoader
from importlib.metadata import EntryPoint, entry_points
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from traceback import extract_tb
from types import CodeType, ModuleType
from typing import Any

GROUP = "turnkeeper.filters"
_LONGEST = 300


class Broken(ValueError):
    """Code that a user brought cannot be loaded; the message says what it did, on one line."""


def from_file(path: Path) -> ModuleType:
    """What a file defines now, whatever it defined before. Raises Broken."""
    # The last part is the filter's name, as with those that are shipped: explanations show it.
    folder = sha256(str(path.parent).encode("utf-8", "surrogatepass")).hexdigest()[:16]
    name = f"turnkeeper_filters_{folder}.{path.stem}"
    spec = spec_from_file_location(name, path, loader=_Fresh(name, str(path)))
    if spec is None or spec.loader is None:  # pragma: no cover - a loader was given
        raise Broken("this is no Python file")
    module, former = module_from_spec(spec), sys.modules.get(name)
    # While it runs, pydantic looks into sys.modules for the types and docstrings of the class.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - it is the user's code
        _put_back(name, former)
        raise Broken(_told(error, str(path))) from None
    return module


def installed() -> set[str]:
    """The names of all filters that installed packages announce."""
    return set(entry_points(group=GROUP).names)


def from_package(name: str) -> Any:
    """What the entry point of a name leads to, or ``None`` where there is none. Raises Broken."""
    found = list(entry_points(group=GROUP, name=name))
    packages = {point.dist.name if point.dist else point.value for point in found}
    if len(packages) > 1:
        listed = ", ".join(sorted(packages))
        raise Broken(f"more than one installed package brings a filter {name!r}: {listed}")
    return _loaded(found[0]) if found else None


def failure(error: BaseException) -> str:
    """An exception of a user's code on one line, cut where it is long."""
    text = " ".join(str(error.msg if isinstance(error, SyntaxError) else error).split())
    said = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return said if len(said) <= _LONGEST else f"{said[:_LONGEST]}…"


class _Fresh(SourceFileLoader):
    """Compiles what the file holds: a cached form would hide an edit made within the same second."""

    def get_code(self, fullname: str) -> CodeType:  # noqa: ARG002 - the interface
        return self.source_to_code(self.get_data(self.path), self.path)


def _put_back(name: str, former: ModuleType | None) -> None:
    if former is None:
        del sys.modules[name]
    else:
        sys.modules[name] = former


def _loaded(point: EntryPoint) -> Any:
    try:
        return point.load()
    except (Exception, SystemExit) as error:  # noqa: BLE001 - it is the user's code
        raise Broken(f"the installed filter {point.name!r} cannot be loaded: {failure(error)}") from None


def _told(error: BaseException, file: str) -> str:
    """What went wrong, and in which line of the file."""
    line = error.lineno if isinstance(error, SyntaxError) and error.filename == file else _line(error, file)
    if line:
        return f"the file cannot be loaded: line {line}: {failure(error)}"
    if isinstance(error, OSError):
        return f"the file cannot be read: {error.strerror}"
    return f"the file cannot be loaded: {failure(error)}"


def _line(error: BaseException, file: str) -> int | None:
    lines = (frame.lineno for frame in extract_tb(error.__traceback__) if frame.filename == file)
    return next(lines, None)
