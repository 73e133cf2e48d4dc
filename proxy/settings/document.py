"""A YAML file as plain values, with the line of each key and each value."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import yaml
from yaml.reader import Reader

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TAG = "tag:yaml.org,2002:"
MAX_BYTES = 256 * 1024
_MAX_NODES = 10_000
_MAX_DEPTH = 32
_NO_TAGS = "a tag such as !name has no meaning here; take it out, or put the text in quotes"
_KEY_TEXT = "a key must be text; put it in quotes"
_NOT_YAML = (
    "this is not YAML; look for a bracket or a quote that is not closed, or a wrong indent, up to here"
)
KeyPath = tuple[str | int, ...]


_PLAIN = {_TAG + name for name in ("str", "timestamp", "value")}


_TYPED = {_TAG + name for name in ("null", "bool", "int", "float")}


_TOO_DEEP = f"nested more than {_MAX_DEPTH} levels deep, or an alias that holds itself; write it flatter"


_KEY = {
    _TAG + "bool": "YAML reads this key as true or false; put it in quotes",
    _TAG + "merge": "'<<' has no meaning here; write the keys out",
}


_SYNTAX = {
    "cannot start any token": "indent with spaces, not tabs; put a text that begins with @, % or ` in quotes",
    "undefined alias": "no '&' anchor stands before this '*' alias; put a text that begins with * in quotes",
    "another document": "a second document begins here; one file holds one configuration",
    "mapping values are not allowed": "a second ': ' stands here; quote the text, or correct the indent",
    "did not find expected ',' or": "a text with ': ' or ', ' in it wants quotes, or a bracket is not closed",
    "could not find expected ':'": "a ':' is missing after the key, or the indent is wrong",
    "tag handle": _NO_TAGS,
}


class Lines(msgspec.Struct, frozen=True):
    """Where a key and its value stand, counted from 1; an item of a list has no key of its own."""

    key: int
    value: int


class Problem(msgspec.Struct, frozen=True):
    """Something that cannot be read as it was meant."""

    place: KeyPath
    line: int
    message: str


class Document(msgspec.Struct, frozen=True):
    """What a file holds; what is flawed is missing from ``value``."""

    value: dict[str, Any]
    lines: Mapping[KeyPath, Lines]
    flaws: Sequence[Problem]

    def line(self, place: KeyPath) -> int:
        """The line of the value at a place; where there is none, of the nearest key around it."""
        if place in self.lines:
            return self.lines[place].value
        return self.key_line(place[:-1])

    def key_line(self, place: KeyPath) -> int:
        """The line of the key at a place; where there is none, of the nearest key around it."""
        while place and place not in self.lines:
            place = place[:-1]
        return self.lines[place].key if place else 1


class DocumentError(ValueError):
    """The file as a whole cannot be used; ``line`` says where reading ended."""

    def __init__(self, message: str, line: int = 1) -> None:
        super().__init__(message)
        self.line = line


def decode(data: bytes) -> str:
    """A file's text. Raises NotADocument where it is too large, or not UTF-8, or holds control characters."""
    if len(data) > MAX_BYTES:
        raise DocumentError(f"a configuration has at most {MAX_BYTES // 1024} KiB")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise DocumentError("the file is not UTF-8; save it as UTF-8", line) from None
    if strange := Reader.NON_PRINTABLE.search(text):
        line = text.count("\n", 0, strange.start()) + 1
        raise DocumentError("here is a control character; take it out", line)
    return text


def parse(text: str, keys: tuple[str, str] = ("upstreams", "pipelines")) -> Document:
    """The document in a text. Raises NotADocument where there is none, never anything else.

    ``keys`` are two that may stand in it, for whoever writes none.
    """
    try:
        _check_depth(text)
        root = yaml.compose(text, Loader=_LOADER)
    except yaml.MarkedYAMLError as error:
        line = _line(error.problem_mark or error.context_mark)
        raise DocumentError(_syntax_advice(error), min(line, len(text.splitlines()))) from None
    if root is None:
        raise DocumentError(f"the file is empty; write '{keys[0]}:' and '{keys[1]}:'")
    if not isinstance(root, yaml.MappingNode):
        raise DocumentError(
            f"write keys and values, such as '{keys[0]}:' and '{keys[1]}:'", _line(root.start_mark)
        )
    walk = _Walk()
    value = walk.mapping(root, ())
    return Document(value, walk.lines, walk.flaws)


class _Walk:
    """One pass over the nodes: it makes values, notes lines, and counts what aliases multiply."""

    def __init__(self) -> None:
        self.lines: dict[KeyPath, Lines] = {}
        self.flaws: list[Problem] = []
        self._nodes = 0

    def mapping(self, node: yaml.MappingNode, place: KeyPath) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for key, inner in self._entries(node, place):
            self.lines[(*place, key.value)] = Lines(_line(key.start_mark), _line(inner.start_mark))
            values[key.value] = self._value(inner, (*place, key.value))
        return values

    def _sequence(self, node: yaml.SequenceNode, place: KeyPath) -> list[Any]:
        for i, inner in enumerate(node.value):
            self.lines[(*place, i)] = Lines(_line(inner.start_mark), _line(inner.start_mark))
        return [self._value(inner, (*place, i)) for i, inner in enumerate(node.value)]

    def _value(self, node: yaml.Node, place: KeyPath) -> Any:
        self._count(node, place)
        if isinstance(node, yaml.MappingNode) and node.tag == _TAG + "map":
            return self.mapping(node, place)
        if isinstance(node, yaml.SequenceNode) and node.tag == _TAG + "seq":
            return self._sequence(node, place)
        if isinstance(node, yaml.ScalarNode) and node.tag in _PLAIN | _TYPED:
            return _scalar(node)
        self.flaws.append(Problem(place, _line(node.start_mark), _NO_TAGS))
        return None

    def _entries(self, node: yaml.MappingNode, place: KeyPath) -> Iterator[tuple[yaml.ScalarNode, yaml.Node]]:
        seen = set()
        for key, inner in node.value:
            name = key.value if isinstance(key, yaml.ScalarNode) else "?"
            if key.tag != _TAG + "str":
                self.flaws.append(
                    Problem((*place, name), _line(key.start_mark), _KEY.get(key.tag, _KEY_TEXT))
                )
            elif name in seen:
                self.flaws.append(
                    Problem((*place, name), _line(key.start_mark), "this key stands here twice; keep one")
                )
            else:
                seen.add(name)
                yield key, inner

    def _count(self, node: yaml.Node, place: KeyPath) -> None:
        self._nodes += 1
        if len(place) > _MAX_DEPTH:
            raise DocumentError(_TOO_DEEP, _line(node.start_mark))
        if self._nodes > _MAX_NODES:
            raise DocumentError(
                f"a configuration has at most {_MAX_NODES} values, aliases counted", _line(node.start_mark)
            )


def _check_depth(text: str) -> None:
    """Raise NotADocument for what is nested too deeply, before anything recurses into it."""
    depth = 0
    for event in yaml.parse(text, Loader=_LOADER):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > _MAX_DEPTH:
            raise DocumentError(_TOO_DEEP, _line(event.start_mark))


def _scalar(node: yaml.ScalarNode) -> Any:
    """The value of a scalar; what only looks like a number, such as ``0b_``, is text."""
    if node.tag in _PLAIN:
        return node.value
    try:
        return yaml.constructor.SafeConstructor().construct_object(node)
    except (ValueError, LookupError, ArithmeticError):
        return node.value


def _line(mark: Any) -> int:
    return int(mark.line) + 1 if mark else 1


def _syntax_advice(error: yaml.MarkedYAMLError) -> str:
    """What to do about a syntax error; the text itself, which may hold secrets, is not shown."""
    problem = error.problem or ""
    return next((advice for words, advice in _SYNTAX.items() if words in problem), _NOT_YAML)
