"""Reads YAML files as plain values with line numbers, and fills in environment variables.

``${NAME}`` and ``${NAME:-default}`` stand for a variable, and ``$$`` for ``$``.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml
from yaml.reader import Reader

KeyPath = tuple[str | int, ...]
"""The path of a value: keys and list indexes from the top of the document."""

MAX_BYTES = 256 * 1024
_MAX_NODES = 10_000
_MAX_DEPTH = 32

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TAG = "tag:yaml.org,2002:"
_PLAIN = {_TAG + name for name in ("str", "timestamp", "value")}
_TYPED = {_TAG + name for name in ("null", "bool", "int", "float")}

_TOO_DEEP = f"nested more than {_MAX_DEPTH} levels deep, or an alias that holds itself; write it flatter"
_NO_TAGS = "a tag such as !name has no meaning here; take it out, or put the text in quotes"
_KEY_TEXT = "a key must be text; put it in quotes"
_KEY = {
    _TAG + "bool": "YAML reads this key as true or false; put it in quotes",
    _TAG + "merge": "'<<' has no meaning here; write the keys out",
}
_NOT_YAML = (
    "this is not YAML; look for a bracket or a quote that is not closed, or a wrong indent, up to here"
)
_SYNTAX = {
    "cannot start any token": "indent with spaces, not tabs; put a text that begins with @, % or ` in quotes",
    "undefined alias": "no '&' anchor stands before this '*' alias; put a text that begins with * in quotes",
    "another document": "a second document begins here; one file holds one configuration",
    "mapping values are not allowed": "a second ': ' stands here; quote the text, or correct the indent",
    "did not find expected ',' or": "a text with ': ' or ', ' in it wants quotes, or a bracket is not closed",
    "could not find expected ':'": "a ':' is missing after the key, or the indent is wrong",
    "tag handle": _NO_TAGS,
}
_VARIABLE = re.compile(r"\$\$|\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?P<default>:-[^{}]*)?\}|(?P<broken>\$\{)")
_FILE_SUFFIX: Final = "_FILE"
_MAX_FILE_BYTES: Final = 1_000_000


class Lines(msgspec.Struct, frozen=True):
    """The lines of a key and of its value, counted from 1; an item of a list has no key of its own."""

    key: int
    value: int


class Problem(msgspec.Struct, frozen=True):
    """An error in a document; the message says what to write instead."""

    path: KeyPath
    line: int
    message: str


class Document(msgspec.Struct, frozen=True):
    """The values of a file with their lines and problems; a value with a problem is missing or ``None``."""

    value: dict[str, Any]
    lines: Mapping[KeyPath, Lines]
    problems: Sequence[Problem]

    def line(self, path: KeyPath) -> int:
        """The line of the value at a path, else of the nearest key around it."""
        if path in self.lines:
            return self.lines[path].value
        return self.key_line(path[:-1])

    def key_line(self, path: KeyPath) -> int:
        """The line of the key at a path, else of the nearest key around it."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines[path].key if path else 1


class DocumentError(ValueError):
    """Raised where a file as a whole cannot be used; ``line`` is where reading ended."""

    def __init__(self, message: str, line: int = 1) -> None:
        super().__init__(message)
        self.line = line


def decode(data: bytes) -> str:
    """Decodes a file; raises DocumentError where it is too large, not UTF-8, or has control characters."""
    if len(data) > MAX_BYTES:
        raise DocumentError(f"a configuration has at most {MAX_BYTES // 1024} KiB")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise DocumentError("the file is not UTF-8; save it as UTF-8", line) from None
    if unprintable := Reader.NON_PRINTABLE.search(text):
        line = text.count("\n", 0, unprintable.start()) + 1
        raise DocumentError("control character; remove it", line)
    return text


def parse(text: str, keys: tuple[str, str] = ("upstreams", "pipelines")) -> Document:
    """Parses a text. Raises DocumentError where it is not a YAML mapping, and no other error.

    ``keys`` are two keys that the error for an empty text suggests.
    """
    try:
        _check_depth(text)
        root = yaml.compose(text, Loader=_LOADER)
    except yaml.MarkedYAMLError as error:
        problem = error.problem or ""
        # The problem itself is not shown, since it may quote a secret.
        message = next((advice for words, advice in _SYNTAX.items() if words in problem), _NOT_YAML)
        line = _opened(text, error) or _line(error.problem_mark or error.context_mark)
        raise DocumentError(message, min(line, len(text.splitlines()))) from None
    if root is None:
        raise DocumentError(f"the file is empty; write '{keys[0]}:' and '{keys[1]}:'")
    if not isinstance(root, yaml.MappingNode):
        raise DocumentError(
            f"write keys and values, such as '{keys[0]}:' and '{keys[1]}:'", _line(root.start_mark)
        )
    reader = _NodeReader()
    return Document(reader.mapping(root, ()), reader.lines, reader.problems)


def _opened(text: str, error: yaml.MarkedYAMLError) -> int | None:
    """The line of an unclosed bracket or quote, if that is the error; else ``None``."""
    if (error.context or "").startswith(("while parsing a flow", "while scanning a quoted")):
        return _line(error.context_mark)
    # An unclosed quote ends at the next one, lines below, and the error is reported there.
    ended = _line(error.problem_mark)
    long: yaml.ScalarToken | None = None
    try:
        for token in yaml.scan(text, Loader=_LOADER):
            if isinstance(token, yaml.ScalarToken) and not token.plain and token.style in {"'", '"'}:
                is_long = token.start_mark.line < token.end_mark.line
                long = token if is_long and _line(token.end_mark) <= ended else long
    except yaml.YAMLError:
        pass
    return _line(long.start_mark) if long and _line(long.end_mark) == ended else None


def _check_depth(text: str) -> None:
    """Raises DocumentError where the text is nested too deeply for the recursive parser."""
    depth = 0
    for event in yaml.parse(text, Loader=_LOADER):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > _MAX_DEPTH:
            raise DocumentError(_TOO_DEEP, _line(event.start_mark))


class _NodeReader:
    """Makes values of YAML nodes; each repetition by an alias counts against the limit."""

    def __init__(self) -> None:
        self.lines: dict[KeyPath, Lines] = {}
        self.problems: list[Problem] = []
        self._nodes = 0

    def mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for key, inner in node.value:
            name = key.value if isinstance(key, yaml.ScalarNode) else "?"
            inner_path, line = (*path, name), _line(key.start_mark)
            if key.tag != _TAG + "str":
                self.problems.append(Problem(inner_path, line, _KEY.get(key.tag, _KEY_TEXT)))
            elif name in values:
                self.problems.append(Problem(inner_path, line, "duplicate key; keep one"))
            else:
                self.lines[inner_path] = Lines(line, _line(inner.start_mark))
                values[name] = self._value(inner, inner_path)
        return values

    def _value(self, node: yaml.Node, path: KeyPath) -> Any:
        line = _line(node.start_mark)
        self._nodes += 1
        if len(path) > _MAX_DEPTH:
            raise DocumentError(_TOO_DEEP, line)
        if self._nodes > _MAX_NODES:
            raise DocumentError(f"a configuration has at most {_MAX_NODES} values, aliases counted", line)
        if isinstance(node, yaml.MappingNode) and node.tag == _TAG + "map":
            return self.mapping(node, path)
        if isinstance(node, yaml.SequenceNode) and node.tag == _TAG + "seq":
            items = [((*path, i), inner) for i, inner in enumerate(node.value)]
            self.lines |= {at: Lines(_line(inner.start_mark), _line(inner.start_mark)) for at, inner in items}
            return [self._value(inner, at) for at, inner in items]
        if isinstance(node, yaml.ScalarNode) and node.tag in _TYPED:
            try:
                return yaml.constructor.SafeConstructor().construct_object(node)
            except (ValueError, LookupError, ArithmeticError):
                return node.value  # it only looks like a number, such as 0b_
        if isinstance(node, yaml.ScalarNode) and node.tag in _PLAIN:
            return node.value
        self.problems.append(Problem(path, line, _NO_TAGS))
        return None


def _line(mark: Any) -> int:
    return int(mark.line) + 1 if mark else 1


class Private(str):
    """A text that may contain a value from the environment, which ``repr``, and so any message, hides.

    ``variables`` are the names of the environment variables in it.
    """

    __slots__ = ("variables",)
    variables: tuple[str, ...]

    def __new__(cls, text: str = "", variables: tuple[str, ...] = ()) -> "Private":  # noqa: PYI034
        """Makes a private text with the values of these variables."""
        private = super().__new__(cls, text)
        private.variables = variables
        return private

    def __repr__(self) -> str:
        return "(a value from the environment)"


def is_private(value: Any) -> bool:
    """Whether a value, or any value within it, may come from the environment."""
    if isinstance(value, dict):
        return any(map(is_private, value.values()))
    return any(map(is_private, value)) if isinstance(value, list) else isinstance(value, Private)


def fill(value: Any, environ: Mapping[str, str], errors: dict[KeyPath, str], path: KeyPath = ()) -> Any:
    """Interpolates all texts of a document; adds errors to ``errors``, and leaves those texts empty."""
    if isinstance(value, dict):
        return {key: fill(inner, environ, errors, (*path, key)) for key, inner in value.items()}
    if isinstance(value, list):
        return [fill(inner, environ, errors, (*path, i)) for i, inner in enumerate(value)]
    if not isinstance(value, str):
        return value
    try:
        return interpolate(value, environ)
    except ValueError as error:
        errors[path] = str(error)
        return Private()


def interpolate(text: str, environ: Mapping[str, str]) -> str:
    """Replaces the variables in a text once: a ``$`` in a variable's value stays.

    The default also replaces an empty variable, as in a shell. Raises ValueError, whose message has the
    variable's name but never its value.
    """

    def value(match: re.Match[str]) -> str:
        if match["broken"]:
            raise ValueError(
                "write ${NAME} or ${NAME:-default}, without braces in the default; $${ means ${ itself"
            )
        name, default = match["name"], match["default"]
        if name is None:
            return "$"
        value = _lookup(name, environ)
        if default is not None:
            return value or default[2:].replace("$$", "$")
        if value is None:
            raise ValueError(f"the environment has no {name}; set it, or write ${{{name}:-default}}")
        return value

    filled = _VARIABLE.sub(value, text)
    if "${" not in text:
        return filled
    return Private(filled, tuple(match["name"] for match in _VARIABLE.finditer(text) if match["name"]))


def _lookup(name: str, environ: Mapping[str, str]) -> str | None:
    """The value of a variable, or the content of the file in ``NAME_FILE``; ``None`` without either.

    Raises ValueError where both are set, or where the file cannot be read.
    """
    value, path = environ.get(name), environ.get(name + _FILE_SUFFIX)
    if not path:
        return value
    if value:
        raise ValueError(f"the environment has both {name} and {name}{_FILE_SUFFIX}; remove one")
    try:
        with Path(path).open("rb") as file:
            content = file.read(_MAX_FILE_BYTES + 1)
        if len(content) <= _MAX_FILE_BYTES:
            # Editors write a line break at the end.
            return content.decode().removesuffix("\n").removesuffix("\r")
    except (OSError, ValueError):
        pass
    raise ValueError(f"{name}{_FILE_SUFFIX} names a file that cannot be read")
