"""From a YAML file to settings, or to all that is wrong with it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, Field, ValidationError
from pydantic_core import ErrorDetails

from filters.base import AnswerFilter, RequestFilter
from proxy.errors import ConfigError
from proxy.settings import step_rules
from proxy.settings.checks import settings_warnings
from proxy.settings.diagnostics import Diagnostic, dotted_path, error_advice
from proxy.settings.document import MAX_BYTES, Document, DocumentError, KeyPath, Problem, decode, parse
from proxy.settings.filter_registry import FilterRegistry
from proxy.settings.interpolation import fill, is_private
from proxy.settings.settings import Settings
from proxy.settings.values import AnswerStep, RequestStep, SettingsModel, ValidationContext

_SHIPPED = FilterRegistry()
Reader = Callable[[Path], bytes]
"""How a file's bytes are had. Raises NotADocument where they are not."""
_NAME = "pipeline"
_SIDES = ("request", "answer")
_MOST_BYTES = 32 * 1024
_MOST_STEPS = 50


def read_bytes(path: Path) -> bytes:
    """A file's bytes, a few more than it may have at the most. Raises NotADocument."""
    try:
        with path.open("rb") as file:
            return file.read(MAX_BYTES + 1)
    except OSError as error:
        raise DocumentError(f"the file cannot be read: {error.strerror}") from None
    except ValueError:
        raise DocumentError("this is no name of a file") from None


def load(path: Path, environ: Mapping[str, str], shelf: FilterRegistry = _SHIPPED) -> Settings:
    """The settings of a file, its filters built. Raises ConfigError with all faults, a line each."""
    read = _read(path, environ, shelf)
    if isinstance(read, Settings):
        return read
    raise ConfigError("\n".join(map(str, read)))


def config_errors(
    path: Path, environ: Mapping[str, str], shelf: FilterRegistry = _SHIPPED, reader: Reader = read_bytes
) -> list[Diagnostic]:
    """All that is wrong with a file, in the order of its lines."""
    read = _read(path, environ, shelf, reader)
    return [] if isinstance(read, Settings) else read


def load_registry(path: Path, environ: Mapping[str, str], shelf: FilterRegistry = _SHIPPED) -> FilterRegistry:
    """The filters that a file may name, its own among them. Raises ConfigError where they cannot be had."""
    try:
        document = parse(decode(read_bytes(path)))
    except DocumentError as error:
        raise ConfigError(str(Diagnostic(str(path), error.line, dotted_path(()), str(error)))) from None
    missing: dict[KeyPath, str] = {}
    named = fill(document.value.get("filters"), environ, missing, ("filters",))
    stocked, wrong = _stocked(shelf, named, path.parent, set(missing))
    found = [
        Diagnostic(str(path), document.line(at), dotted_path(at), said)
        for at, said in {**missing, **wrong}.items()
    ]
    if found:
        raise ConfigError("\n".join(map(str, found)))
    return stocked


def config_warnings(path: Path, environ: Mapping[str, str], reader: Reader = read_bytes) -> list[Diagnostic]:
    """What a file says and cannot mean, in the order of its lines; nothing where it has faults."""
    try:
        document = parse(decode(reader(path)))
    except DocumentError:
        return []
    checked = _checked(document, environ, path.parent, _SHIPPED)
    if not isinstance(checked, Settings):
        return []
    found = [
        Diagnostic(str(path), document.line(each.place), dotted_path(each.place), f"warning: {each.message}")
        for each in settings_warnings(checked)
    ]
    return sorted(found, key=lambda warning: (warning.line, warning.path))


def _read(
    path: Path, environ: Mapping[str, str], shelf: FilterRegistry, reader: Reader = read_bytes
) -> Settings | list[Diagnostic]:
    try:
        document = parse(decode(reader(path)))
    except DocumentError as error:
        return [Diagnostic(str(path), error.line, dotted_path(()), str(error))]
    checked = _checked(document, environ, path.parent, shelf)
    if isinstance(checked, Settings):
        return checked
    return [Diagnostic(str(path), flaw.line, dotted_path(flaw.place), flaw.message) for flaw in checked]


def _checked(
    document: Document, environ: Mapping[str, str], folder: Path, shelf: FilterRegistry
) -> Settings | list[Problem]:
    """The settings of a document, or its flaws; what is flawed as text is not blamed for its value too."""
    missing: dict[KeyPath, str] = {}
    value = fill(document.value, environ, missing)
    flaws = [
        *document.flaws,
        *(Problem(place, document.line(place), said) for place, said in missing.items()),
    ]
    known = {flaw.place for flaw in flaws}
    shelf, wrong = _stocked(shelf, value.get("filters"), folder, known)
    flaws += [Problem(place, document.line(place), said) for place, said in wrong.items()]
    try:
        settings = Settings.model_validate(value, context=_surroundings(value, known, shelf))
    except ValidationError as error:
        found = [problem(each, document, value, shelf) for each in error.errors(include_url=False)]
        flaws += [flaw for flaw in found if not _is_within(flaw.place, known)]
    flaws += _without_default(document, known)
    return sorted(flaws, key=lambda flaw: flaw.line) or settings


def _stocked(
    shelf: FilterRegistry, named: Any, folder: Path, known: set[KeyPath]
) -> tuple[FilterRegistry, dict[KeyPath, str]]:
    """The shelf with the files that a document names, and what is wrong with them, by place."""
    if not isinstance(named, list):
        return shelf, {}
    sound = [i for i, path in enumerate(named) if isinstance(path, str) and ("filters", i) not in known]
    shelf, wrong = shelf.with_files([folder / named[i] for i in sound])
    return shelf, {("filters", sound[i]): said for i, said in wrong.items()}


def _surroundings(value: dict[str, Any], known: set[KeyPath], shelf: FilterRegistry) -> ValidationContext:
    upstreams, keys = value.get("upstreams"), value.get("keys", "")
    names = tuple(upstreams) if isinstance(upstreams, dict) else None
    keyless = isinstance(keys, str) and not keys.strip() and ("keys",) not in known
    return ValidationContext(shelf, names, keyless)


def _without_default(document: Document, known: set[KeyPath]) -> Iterator[Problem]:
    place = ("pipelines", "default")
    pipelines = document.value.get("pipelines")
    if isinstance(pipelines, dict) and "default" not in pipelines and not _is_within(place, known):
        yield Problem(
            place, document.line(place), "this pipeline is missing; name one of the pipelines 'default'"
        )


def problem(
    error: ErrorDetails,
    document: Document,
    value: Any,
    shelf: FilterRegistry,
    root: type[SettingsModel] = Settings,
) -> Problem:
    """What is wrong, in our own words, where a document is no ``root``."""
    place = tuple(step for step in error["loc"] if step != "[key]")
    allowed = fields_at(root, place[:-1], shelf) if error["type"] == "extra_forbidden" else []
    message = _misplaced(place, allowed, shelf) or error_advice(
        error, allowed, private=is_private(_deepest(value, place))
    )
    of_a_key = error["type"] == "extra_forbidden" or place != error["loc"]
    return Problem(place, document.key_line(place) if of_a_key else document.line(place), message)


def _misplaced(place: KeyPath, allowed: Sequence[str], shelf: FilterRegistry) -> str:
    """Where a filter stands beside the steps instead of among them, which side it belongs to."""
    for side, kind in (("request", RequestFilter), ("answer", AnswerFilter)):
        if side in allowed and str(place[-1]) in shelf.names(kind):
            return f"{place[-1]!r} is a filter; make it a step under '{side}:'"
    return ""


def _deepest(value: Any, place: KeyPath) -> Any:
    """What stands at a place, or nearest above it."""
    for step in place:
        inner = dict(enumerate(value)) if isinstance(value, list) else value
        if not isinstance(inner, dict) or step not in inner:
            break
        value = inner[step]
    return value


def _is_within(place: KeyPath, known: set[KeyPath]) -> bool:
    return any(place[:length] in known for length in range(1, len(place) + 1))


class Steps(SettingsModel):
    """What may be written: steps, and nothing that leads out of them."""

    request: Annotated[tuple[RequestStep, ...], Field(max_length=_MOST_STEPS)] = ()
    """The filters between the client's request and the model, in the order in which they run."""
    answer: Annotated[tuple[AnswerStep, ...], Field(max_length=_MOST_STEPS)] = ()
    """The filters between the model's answer and the client, in the order in which they run."""


def load_steps(text: str, shelf: FilterRegistry) -> Steps | list[Diagnostic]:
    """The draft in a text, or all that is wrong with it, in the order of its lines.

    The check is that of a whole configuration, but nothing is read from the environment or from files: a
    ``$`` is a ``$``. Only filters of the shelf are known.
    """
    try:
        document = _parse_steps(text)
    except DocumentError as error:
        return [Diagnostic(_NAME, error.line, dotted_path(()), str(error))]
    flaws = list(document.flaws)
    try:
        found = Steps.model_validate(document.value, context=ValidationContext(shelf))
    except ValidationError as error:
        wrong = [
            problem(each, document, document.value, shelf, Steps) for each in error.errors(include_url=False)
        ]
        known = {each.place for each in flaws}
        flaws += [each for each in wrong if each.place not in known]
    told = [
        Diagnostic(_NAME, each.line, dotted_path(each.place), each.message)
        for each in sorted(flaws, key=_line_of)
    ]
    return told or found


def step_warnings(text: str, draft: Steps) -> Sequence[Diagnostic]:
    """What a sound draft says and cannot mean."""
    document = _parse_steps(text)
    return [
        Diagnostic(_NAME, document.line(("request", i)), dotted_path(("request", i)), message)
        for i, message in step_rules.order_warnings(draft.request)
    ]


def _parse_steps(text: str) -> Document:
    data = text.encode("utf-8", "surrogatepass")
    if len(data) > _MOST_BYTES:
        raise DocumentError(f"a pipeline to be tried has at most {_MOST_BYTES // 1024} KiB")
    written = decode(data)
    return parse(written, _SIDES) if _says_anything(written) else Document({}, {}, [])


def _says_anything(text: str) -> bool:
    return any(line.strip() and not line.strip().startswith("#") for line in text.splitlines())


def _line_of(each: Problem) -> int:
    return each.line


def fields_at(root: Any, place: KeyPath, shelf: FilterRegistry) -> list[str]:
    """The keys that may stand at a place of a model, as they are written; empty where it is no model."""
    kind = root
    for key in place:
        kind = _inside(kind, key, shelf)
    return [field.alias or name for name, field in kind.model_fields.items()] if _is_model(kind) else []


def _inside(kind: Any, key: str | int, shelf: FilterRegistry) -> Any:
    if kind in {RequestFilter, AnswerFilter}:
        return shelf.named(str(key), kind)
    if _is_model(kind):
        fields = {field.alias or name: field for name, field in kind.model_fields.items()}
        return _bare(fields[str(key)].annotation) if str(key) in fields else None
    inner = [each for each in get_args(kind) if each is not Ellipsis]
    return _bare(inner[-1]) if inner else None


def _bare(kind: Any) -> Any:
    """A type without the notes on it, and without ``None``; of several, the one that has keys."""
    if hasattr(kind, "__metadata__"):
        return _bare(kind.__origin__)
    if not isinstance(kind, UnionType) and get_origin(kind) is not Union:
        return kind
    some = [each for each in get_args(kind) if each is not type(None)]
    models = [each for each in some if _is_model(each)]
    return _bare((models or some)[0]) if models or len(some) == 1 else kind


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)
