"""``${NAME}`` and ``${NAME:-default}`` in the texts of a configuration; ``$$`` stands for ``$``."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from proxy.settings.document import KeyPath

_VARIABLE = re.compile(r"\$\$|\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?P<default>:-[^{}]*)?\}|(?P<broken>\$\{)")
_FILE_SUFFIX: Final = "_FILE"
_MAX_FILE_BYTES: Final = 1_000_000


class Private(str):
    """A text that may hold a value from the environment: ``repr``, and so any message, hides it.

    ``variables`` are the names of those in it.
    """

    __slots__ = ("variables",)
    variables: tuple[str, ...]

    def __new__(cls, text: str = "", variables: tuple[str, ...] = ()) -> "Private":  # noqa: PYI034
        """The text, which holds the values of these variables."""
        private = super().__new__(cls, text)
        private.variables = variables
        return private

    def __repr__(self) -> str:
        return "(a value from the environment)"


def is_private(value: Any) -> bool:
    """Whether a value, or anything in it, may come from the environment."""
    if isinstance(value, dict):
        return any(map(is_private, value.values()))
    return any(map(is_private, value)) if isinstance(value, list) else isinstance(value, Private)


def fill(value: Any, environ: Mapping[str, str], errors: dict[KeyPath, str], path: KeyPath = ()) -> Any:
    """A document with its texts interpolated; a text with an error is empty, and the error in ``errors``."""
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
    """The text with its variables filled in, once: a ``$`` in the value of a variable stays.

    A default also stands in for an empty variable, as in a shell. Raises ValueError, which names the
    variable but never quotes its value.
    """
    if "$" not in text:
        return text
    filled = _VARIABLE.sub(lambda match: _replacement(match, environ), text)
    if "${" not in text:
        return filled
    return Private(filled, tuple(match["name"] for match in _VARIABLE.finditer(text) if match["name"]))


def _replacement(match: re.Match[str], environ: Mapping[str, str]) -> str:
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


def _lookup(name: str, environ: Mapping[str, str]) -> str | None:
    """The value of a variable, or the content of the file in ``NAME_FILE``, where containers get secrets."""
    value, path = environ.get(name), environ.get(name + _FILE_SUFFIX)
    if not path:
        return value
    if value:
        raise ValueError(f"the environment has both {name} and {name}{_FILE_SUFFIX}; take one away")
    try:
        with Path(path).open("rb") as file:
            content = file.read(_MAX_FILE_BYTES + 1)
        if len(content) <= _MAX_FILE_BYTES:
            # Editors write a line break at the end.
            return content.decode().removesuffix("\n").removesuffix("\r")
    except (OSError, ValueError):
        pass
    raise ValueError(f"{name}{_FILE_SUFFIX} names a file that cannot be read")
