"""From a YAML file to settings, or to all that is wrong with it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from filters.base import AnswerFilter, RequestFilter
from proxy.configuration.advice import advice, fields_at
from proxy.configuration.crosscheck import findings
from proxy.configuration.document import MAX_BYTES, Document, Flaw, NotADocument, decode, parse
from proxy.configuration.fault import Fault, Place, dotted
from proxy.configuration.interpolation import fill, is_private
from proxy.configuration.part import Part
from proxy.configuration.settings import Settings
from proxy.configuration.shelf import Shelf
from proxy.configuration.value import Surroundings
from proxy.errors import ConfigError

_SHIPPED = Shelf()

Reader = Callable[[Path], bytes]
"""How a file's bytes are had. Raises NotADocument where they are not."""


def bytes_of(path: Path) -> bytes:
    """A file's bytes, a few more than it may have at the most. Raises NotADocument."""
    try:
        with path.open("rb") as file:
            return file.read(MAX_BYTES + 1)
    except OSError as error:
        raise NotADocument(f"the file cannot be read: {error.strerror}") from None
    except ValueError:
        raise NotADocument("this is no name of a file") from None


def load(path: Path, environ: Mapping[str, str], shelf: Shelf = _SHIPPED) -> Settings:
    """The settings of a file, its filters built. Raises ConfigError with all faults, a line each."""
    read = _read(path, environ, shelf)
    if isinstance(read, Settings):
        return read
    raise ConfigError("\n".join(map(str, read)))


def faults(
    path: Path, environ: Mapping[str, str], shelf: Shelf = _SHIPPED, reader: Reader = bytes_of
) -> list[Fault]:
    """All that is wrong with a file, in the order of its lines."""
    read = _read(path, environ, shelf, reader)
    return [] if isinstance(read, Settings) else read


def shelf_of(path: Path, environ: Mapping[str, str], shelf: Shelf = _SHIPPED) -> Shelf:
    """The filters that a file may name, its own among them. Raises ConfigError where they cannot be had."""
    try:
        document = parse(decode(bytes_of(path)))
    except NotADocument as error:
        raise ConfigError(str(Fault(str(path), error.line, dotted(()), str(error)))) from None
    missing: dict[Place, str] = {}
    named = fill(document.value.get("filters"), environ, missing, ("filters",))
    stocked, wrong = _stocked(shelf, named, path.parent, set(missing))
    found = [
        Fault(str(path), document.line(at), dotted(at), said) for at, said in {**missing, **wrong}.items()
    ]
    if found:
        raise ConfigError("\n".join(map(str, found)))
    return stocked


def warnings(path: Path, environ: Mapping[str, str], reader: Reader = bytes_of) -> list[Fault]:
    """What a file says and cannot mean, in the order of its lines; nothing where it has faults."""
    try:
        document = parse(decode(reader(path)))
    except NotADocument:
        return []
    checked = _checked(document, environ, path.parent, _SHIPPED)
    if not isinstance(checked, Settings):
        return []
    found = [
        Fault(str(path), document.line(each.place), dotted(each.place), f"warning: {each.message}")
        for each in findings(checked)
    ]
    return sorted(found, key=lambda warning: (warning.line, warning.path))


def _read(
    path: Path, environ: Mapping[str, str], shelf: Shelf, reader: Reader = bytes_of
) -> Settings | list[Fault]:
    try:
        document = parse(decode(reader(path)))
    except NotADocument as error:
        return [Fault(str(path), error.line, dotted(()), str(error))]
    checked = _checked(document, environ, path.parent, shelf)
    if isinstance(checked, Settings):
        return checked
    return [Fault(str(path), flaw.line, dotted(flaw.place), flaw.message) for flaw in checked]


def _checked(
    document: Document, environ: Mapping[str, str], folder: Path, shelf: Shelf
) -> Settings | list[Flaw]:
    """The settings of a document, or its flaws; what is flawed as text is not blamed for its value too."""
    missing: dict[Place, str] = {}
    value = fill(document.value, environ, missing)
    flaws = [*document.flaws, *(Flaw(place, document.line(place), said) for place, said in missing.items())]
    known = {flaw.place for flaw in flaws}
    shelf, wrong = _stocked(shelf, value.get("filters"), folder, known)
    flaws += [Flaw(place, document.line(place), said) for place, said in wrong.items()]
    try:
        settings = Settings.model_validate(value, context=_surroundings(value, known, shelf))
    except ValidationError as error:
        found = [flaw(each, document, value, shelf) for each in error.errors(include_url=False)]
        flaws += [flaw for flaw in found if not _is_within(flaw.place, known)]
    flaws += _without_default(document, known)
    return sorted(flaws, key=lambda flaw: flaw.line) or settings


def _stocked(shelf: Shelf, named: Any, folder: Path, known: set[Place]) -> tuple[Shelf, dict[Place, str]]:
    """The shelf with the files that a document names, and what is wrong with them, by place."""
    if not isinstance(named, list):
        return shelf, {}
    sound = [i for i, path in enumerate(named) if isinstance(path, str) and ("filters", i) not in known]
    shelf, wrong = shelf.with_files([folder / named[i] for i in sound])
    return shelf, {("filters", sound[i]): said for i, said in wrong.items()}


def _surroundings(value: dict[str, Any], known: set[Place], shelf: Shelf) -> Surroundings:
    upstreams, keys = value.get("upstreams"), value.get("keys", "")
    names = tuple(upstreams) if isinstance(upstreams, dict) else None
    keyless = isinstance(keys, str) and not keys.strip() and ("keys",) not in known
    return Surroundings(shelf, names, keyless)


def _without_default(document: Document, known: set[Place]) -> Iterator[Flaw]:
    place = ("pipelines", "default")
    pipelines = document.value.get("pipelines")
    if isinstance(pipelines, dict) and "default" not in pipelines and not _is_within(place, known):
        yield Flaw(
            place, document.line(place), "this pipeline is missing; name one of the pipelines 'default'"
        )


def flaw(
    error: ErrorDetails, document: Document, value: Any, shelf: Shelf, root: type[Part] = Settings
) -> Flaw:
    """What is wrong, in our own words, where a document is no ``root``."""
    place = tuple(step for step in error["loc"] if step != "[key]")
    allowed = fields_at(root, place[:-1], shelf) if error["type"] == "extra_forbidden" else []
    message = _misplaced(place, allowed, shelf) or advice(
        error, allowed, private=is_private(_deepest(value, place))
    )
    of_a_key = error["type"] == "extra_forbidden" or place != error["loc"]
    return Flaw(place, document.key_line(place) if of_a_key else document.line(place), message)


def _misplaced(place: Place, allowed: Sequence[str], shelf: Shelf) -> str:
    """Where a filter stands beside the steps instead of among them, which side it belongs to."""
    for side, kind in (("request", RequestFilter), ("answer", AnswerFilter)):
        if side in allowed and str(place[-1]) in shelf.names(kind):
            return f"{place[-1]!r} is a filter; make it a step under '{side}:'"
    return ""


def _deepest(value: Any, place: Place) -> Any:
    """What stands at a place, or nearest above it."""
    for step in place:
        inner = dict(enumerate(value)) if isinstance(value, list) else value
        if not isinstance(inner, dict) or step not in inner:
            break
        value = inner[step]
    return value


def _is_within(place: Place, known: set[Place]) -> bool:
    return any(place[:length] in known for length in range(1, len(place) + 1))
