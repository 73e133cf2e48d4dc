"""``${NAME}`` and ``${NAME:-default}`` in the texts of a configuration; ``$$`` stands for ``$``."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from proxy.settings.document import KeyPath

_MARK = re.compile(r"\$\$|\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?P<default>:-[^{}]*)?\}|(?P<broken>\$\{)")
_IN_A_FILE: Final = "_FILE"
_LARGEST: Final = 1_000_000


class Private(str):
    """A text that may hold what came from the environment: ``repr``, and so any message, hides it."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "(a value from the environment)"


def interpolate(text: str, environ: Mapping[str, str]) -> str:
    """The text with its variables filled in, once: what a variable holds is data and stays as it is.

    As in a shell, the default also stands in for an empty variable. Raises ValueError that names a variable
    which is missing without a default, never one's value.
    """
    if "$" not in text:
        return text
    filled = _MARK.sub(lambda mark: _replacement(mark, environ), text)
    return Private(filled) if "${" in text else filled


def fill(value: Any, environ: Mapping[str, str], wrong: dict[KeyPath, str], place: KeyPath = ()) -> Any:
    """A document with every text in it interpolated; what could not be is empty, and told in ``wrong``."""
    if isinstance(value, dict):
        return {key: fill(inner, environ, wrong, (*place, key)) for key, inner in value.items()}
    if isinstance(value, list):
        return [fill(inner, environ, wrong, (*place, i)) for i, inner in enumerate(value)]
    return _fill_text(value, environ, wrong, place) if isinstance(value, str) else value


def is_private(value: Any) -> bool:
    """Whether a value, or anything in it, may have come from the environment."""
    if isinstance(value, dict):
        return any(map(is_private, value.values()))
    return any(map(is_private, value)) if isinstance(value, list) else isinstance(value, Private)


def _fill_text(text: str, environ: Mapping[str, str], wrong: dict[KeyPath, str], place: KeyPath) -> str:
    try:
        return interpolate(text, environ)
    except ValueError as error:
        wrong[place] = str(error)
        return Private()


def _replacement(mark: re.Match[str], environ: Mapping[str, str]) -> str:
    if mark["broken"]:
        raise ValueError(
            "write ${NAME} or ${NAME:-default}, without braces in the default; $${ means ${ itself"
        )
    name, default = mark["name"], mark["default"]
    if name is None:
        return "$"
    held = _variable(name, environ)
    if default is not None:
        return held or default[2:].replace("$$", "$")
    if held is None:
        raise ValueError(f"the environment has no {name}; set it, or write ${{{name}:-default}}")
    return held


def _variable(name: str, environ: Mapping[str, str]) -> str | None:
    """What a variable holds, or the file that stands for it, as containers are given their secrets."""
    held, file = environ.get(name), environ.get(name + _IN_A_FILE)
    if not file:
        return held
    if held:
        raise ValueError(f"the environment has both {name} and {name}{_IN_A_FILE}; take one away")
    try:
        return _content(Path(file))
    except (OSError, ValueError):
        raise ValueError(f"{name}{_IN_A_FILE} names a file that cannot be read") from None


def _content(file: Path) -> str:
    """A file's text less the line break at its end, which editors write."""
    with file.open("rb") as opened:
        content = opened.read(_LARGEST + 1)
    if len(content) > _LARGEST:
        raise ValueError
    return content.decode().removesuffix("\n").removesuffix("\r")
