"""Templates in options: text with names in braces, which nothing but a plain name may fill."""

import re
from collections.abc import Collection, Mapping
from string import Formatter

from pydantic import AfterValidator

STATE = "state."
"""With this before it, any plain name is one: what the client keeps with its session."""
_STATE_NAME = re.compile(r"state\.[A-Za-z_][A-Za-z0-9_]{0,63}")


def template_with(*names: str, required: Collection[str] = ()) -> AfterValidator:
    """A validator for a template: it may hold ``names`` in braces, and holds all that are ``required``.

    Where ``state.`` is among the names, it may hold ``state.`` and a name of the client's own.

    What passes can be filled by ``str.format``: no attribute, index, conversion or format is in it. Values
    are never read as a template themselves.
    """

    def check(text: str) -> str:
        held = names_in(text)
        for name in held:
            if name not in names and not (STATE in names and _STATE_NAME.fullmatch(name)):
                raise ValueError(f"{{{name}}} is no name for this template; there are: {_listed(names)}")
        missing = [name for name in required if name not in held]
        if missing:
            raise ValueError(f"the template must hold {_listed(missing)}")
        return text

    return AfterValidator(check)


def names_in(text: str) -> tuple[str, ...]:
    """The names that a template holds, in order, each once.

    Raises ValueError for a lone brace, and for ``{name!r}`` or ``{name:>9}``.
    """
    names: dict[str, None] = {}
    for _, name, layout, conversion in _pieces(text):
        if layout or conversion:
            raise ValueError(f"{{{name}}} must stand alone in its braces, without '!' or ':'")
        if name is not None:
            names[name] = None
    return tuple(names)


def filled(template: str, values: Mapping[str, str]) -> str:
    """A template that passed, with values in the places of names; a name is looked up whole."""
    pieces = _pieces(template)
    return "".join(text + (values[name] if name is not None else "") for text, name, _, _ in pieces)


def _pieces(text: str) -> list[tuple[str, str | None, str | None, str | None]]:
    try:
        return list(Formatter().parse(text))
    except ValueError:
        raise ValueError("a brace stands alone; write {{ or }} where the brace itself is meant") from None


def _listed(names: Collection[str]) -> str:
    return ", ".join("{state.…}" if name == STATE else f"{{{name}}}" for name in names)
