"""Loads a YAML file as settings, or reports all errors in it."""

from collections.abc import Callable, Mapping
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Generic, NamedTuple, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, Field, ValidationError
from pydantic_core import ErrorDetails

from filters.base import AnswerFilter, RequestFilter
from proxy.errors import ConfigError
from proxy.settings.checks import order_warnings, settings_warnings
from proxy.settings.diagnostics import NO_UPSTREAM, Diagnostic, dotted_path, error_advice, nearest
from proxy.settings.document import (
    MAX_BYTES,
    Document,
    DocumentError,
    KeyPath,
    Problem,
    decode,
    fill,
    is_private,
    parse,
)
from proxy.settings.filter_registry import BROKEN, FilterRegistry
from proxy.settings.settings import Settings
from proxy.settings.values import AnswerStep, RequestStep, SettingsModel, ValidationContext

M = TypeVar("M", bound=SettingsModel)

Reader = Callable[[Path], bytes]
"""Reads the bytes of a file. Raises DocumentError."""

_SHIPPED = FilterRegistry()
_DEFAULT_PIPELINE = ("pipelines", "default")


class Checked(NamedTuple, Generic[M]):
    """The settings in a text, or all errors in it; and warnings, in the order of lines."""

    settings: M | None
    errors: list[Diagnostic]
    warnings: list[Diagnostic]

    def valid(self) -> M:
        """The settings; raises ConfigError with all errors, a line each."""
        if self.settings is None:
            raise ConfigError("\n".join(map(str, self.errors)))
        return self.settings


def check_config(
    path: Path, environ: Mapping[str, str], registry: FilterRegistry = _SHIPPED, reader: Reader | None = None
) -> Checked[Settings]:
    """Checks a file, which ``reader`` reads, and builds its filters.

    Each value has at most one error: a value whose text cannot be read is not validated.
    """
    try:
        document = parse(decode((reader or read_bytes)(path)))
    except DocumentError as error:
        return Checked(None, [_document_error(str(path), error)], [])
    missing: dict[KeyPath, str] = {}
    value = fill(document.value, environ, missing)
    unreadable = {*missing, *(problem.path for problem in document.problems)}
    registry, broken = _with_files(registry, value.get("filters"), path.parent, unreadable)
    upstreams, keys, pipelines = value.get("upstreams"), value.get("keys", ""), value.get("pipelines")
    context = ValidationContext(
        registry,
        upstreams=tuple(upstreams) if isinstance(upstreams, dict) else None,
        keyless=isinstance(keys, str) and not keys.strip() and ("keys",) not in unreadable,
    )
    settings, mistakes = _validate(Settings, document, value, context, unreadable)
    problems = [
        *document.problems,
        *(Problem(at, document.line(at), message) for at, message in {**missing, **broken}.items()),
        *mistakes,
    ]
    is_missing = isinstance(pipelines, dict) and "default" not in pipelines
    if is_missing and not _is_within(_DEFAULT_PIPELINE, unreadable):
        message = "this pipeline is missing; name one of the pipelines 'default'"
        problems.append(Problem(_DEFAULT_PIPELINE, document.line(_DEFAULT_PIPELINE), message))
    if settings is None or problems:
        return Checked(None, _diagnostics(str(path), problems), [])
    warnings = [
        Diagnostic(str(path), document.line(at), dotted_path(at), f"warning: {message}")
        for at, message in settings_warnings(settings)
    ]
    return Checked(settings, [], sorted(warnings, key=lambda warning: (warning.line, warning.path)))


def load(path: Path, environ: Mapping[str, str]) -> Settings:
    """Loads the settings of a file; raises ConfigError with all errors, a line each."""
    return check_config(path, environ).valid()


def load_registry(path: Path, environ: Mapping[str, str]) -> FilterRegistry:
    """The filters that a file may name; raises ConfigError where one under ``filters`` cannot be loaded."""
    try:
        document = parse(decode(read_bytes(path)))
    except DocumentError as error:
        raise ConfigError(str(_document_error(str(path), error))) from None
    errors: dict[KeyPath, str] = {}
    files = fill(document.value.get("filters"), environ, errors, ("filters",))
    registry, more = _with_files(_SHIPPED, files, path.parent, set(errors))
    if errors or more:
        problems = [Problem(at, document.line(at), message) for at, message in {**errors, **more}.items()]
        raise ConfigError("\n".join(map(str, _diagnostics(str(path), problems))))
    return registry


def read_bytes(path: Path) -> bytes:
    """Reads a file, up to one byte more than allowed. Raises DocumentError."""
    try:
        with path.open("rb") as file:
            return file.read(MAX_BYTES + 1)
    except OSError as error:
        raise DocumentError(f"the file cannot be read: {error.strerror}") from None
    except ValueError:
        raise DocumentError("this is not a file name") from None


def _document_error(file: str, error: DocumentError) -> Diagnostic:
    return Diagnostic(file, error.line, dotted_path(()), str(error))


def _diagnostics(file: str, problems: list[Problem]) -> list[Diagnostic]:
    problems = sorted(problems, key=lambda problem: problem.line)
    return [Diagnostic(file, each.line, dotted_path(each.path), each.message) for each in problems]


def _with_files(
    registry: FilterRegistry, files: Any, folder: Path, unreadable: set[KeyPath]
) -> tuple[FilterRegistry, dict[KeyPath, str]]:
    """The registry with the files under ``filters``, and the errors of those that fail, by path."""
    if not isinstance(files, list):
        return registry, {}
    at = [i for i, file in enumerate(files) if isinstance(file, str) and ("filters", i) not in unreadable]
    registry, errors = registry.with_files([folder / files[i] for i in at])
    return registry, {("filters", at[i]): message for i, message in errors.items()}


def _validate(
    model: type[M], document: Document, value: Any, context: ValidationContext, unreadable: set[KeyPath]
) -> tuple[M | None, list[Problem]]:
    """Validates a value; returns the model or ``None``, and the errors except for unreadable values."""
    try:
        return model.model_validate(value, context=context), []
    except ValidationError as error:
        problems = [_problem(each, document, value, context.registry, model) for each in _mistakes(error)]
        return None, [problem for problem in problems if not _is_within(problem.path, unreadable)]


def _is_within(path: KeyPath, paths: set[KeyPath]) -> bool:
    return any(path[:length] in paths for length in range(1, len(path) + 1))


# --- the steps of one pipeline


_MAX_STEPS_BYTES = 32 * 1024
_MAX_STEPS = 50


class Steps(SettingsModel):
    """The steps of a pipeline, which may be tried without access to the configuration."""

    request: Annotated[tuple[RequestStep, ...], Field(max_length=_MAX_STEPS)] = ()
    """The filters between the client's request and the model, in the order in which they run."""
    answer: Annotated[tuple[AnswerStep, ...], Field(max_length=_MAX_STEPS)] = ()
    """The filters between the model's answer and the client, in the order in which they run."""


def load_steps(text: str, registry: FilterRegistry) -> Checked[Steps]:
    """Checks the steps in a text.

    The checks are those of a whole configuration, but nothing is read from the environment or from files: a
    ``$`` is a ``$``.
    """
    data = text.encode("utf-8", "surrogatepass")
    try:
        if len(data) > _MAX_STEPS_BYTES:
            raise DocumentError(f"a pipeline to be tried has at most {_MAX_STEPS_BYTES // 1024} KiB")
        text = decode(data)
        lines = map(str.strip, text.splitlines())
        is_empty = all(not line or line.startswith("#") for line in lines)
        document = Document({}, {}, []) if is_empty else parse(text, ("request", "answer"))
    except DocumentError as error:
        return Checked(None, [_document_error("pipeline", error)], [])
    unreadable = {problem.path for problem in document.problems}
    steps, mistakes = _validate(Steps, document, document.value, ValidationContext(registry), unreadable)
    if steps is None or document.problems:
        return Checked(None, _diagnostics("pipeline", [*document.problems, *mistakes]), [])
    warnings = [
        Diagnostic("pipeline", document.line(("request", i)), dotted_path(("request", i)), message)
        for i, message in order_warnings(steps.request)
    ]
    return Checked(steps, [], warnings)


# --- pydantic's errors


def _mistakes(error: ValidationError) -> list[ErrorDetails]:
    """Reduces errors to one for each mistake.

    A missing key is left out where a misspelt one explains it. An unknown upstream is reported where it is
    first used, and a filter that cannot be loaded only at its file.
    """
    errors = error.errors(include_url=False)
    unknown = [each["loc"] for each in errors if each["type"] == "extra_forbidden"]
    mistakes, messages = list[ErrorDetails](), set[str]()
    for each in errors:
        *place, name = each["loc"] or ("",)
        beside = [str(loc[-1]) for loc in unknown if list(loc[:-1]) == place]
        if each["type"] == "missing" and any(nearest(key, [str(name)]) for key in beside):
            continue
        if each["msg"].endswith(BROKEN):
            continue
        loc = each["loc"]
        inner = (other for other in errors if other["loc"][: len(loc)] == loc != other["loc"])
        if each["type"] == "too_short" and any(inner):
            continue  # pydantic does not count invalid items, whose errors are reported themselves
        if each["msg"].startswith(NO_UPSTREAM):
            if each["msg"] in messages:
                continue
            messages.add(each["msg"])
        mistakes.append(each)
    return mistakes


def _problem(
    error: ErrorDetails,
    document: Document,
    value: Any,
    registry: FilterRegistry,
    root: type[SettingsModel],
) -> Problem:
    """The problem for an error in the validation of a document as ``root``."""
    is_extra = error["type"] == "extra_forbidden"
    path = tuple(step for step in error["loc"] if step != "[key]")
    allowed = _keys_at(root, path[:-1], registry) if is_extra else []
    at_key = is_extra or path != error["loc"]
    line = document.key_line(path) if at_key else document.line(path)
    for side, kind in (("request", RequestFilter), ("answer", AnswerFilter)):
        if side in allowed and str(path[-1]) in registry.names(kind):
            return Problem(path, line, f"{path[-1]!r} is a filter; make it a step under '{side}:'")
    # The value itself, or the nearest around it.
    for step in path:
        inner = dict(enumerate(value)) if isinstance(value, list) else value
        if not isinstance(inner, dict) or step not in inner:
            break
        value = inner[step]
    return Problem(path, line, error_advice(error, allowed, value, private=is_private(value)))


def _keys_at(root: Any, path: KeyPath, registry: FilterRegistry) -> list[str]:
    """The valid keys at a path of a model, as in YAML; empty where the path leads to no model."""
    kind = root
    for key in path:
        if kind in {RequestFilter, AnswerFilter}:
            kind = registry.get(str(key), kind)
        elif _is_model(kind):
            fields = {field.alias or name: field for name, field in kind.model_fields.items()}
            kind = _plain_type(fields[str(key)].annotation) if str(key) in fields else None
        else:
            inner = [each for each in get_args(kind) if each is not Ellipsis]
            kind = _plain_type(inner[-1]) if inner else None
    return [field.alias or name for name, field in kind.model_fields.items()] if _is_model(kind) else []


def _plain_type(kind: Any) -> Any:
    """A type without annotations and ``None``; of a union, the member that is a model."""
    if hasattr(kind, "__metadata__"):
        return _plain_type(kind.__origin__)
    if not isinstance(kind, UnionType) and get_origin(kind) is not Union:
        return kind
    members = [each for each in get_args(kind) if each is not type(None)]
    models = [each for each in members if _is_model(each)]
    return _plain_type((models or members)[0]) if models or len(members) == 1 else kind


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)
