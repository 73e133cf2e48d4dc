"""Templates in options: text with names in braces, which nothing but a plain name may fill."""

from collections.abc import Collection
from string import Formatter

from pydantic import AfterValidator


def template_with(*names: str, required: Collection[str] = ()) -> AfterValidator:
    """A validator for a template: it may hold ``names`` in braces, and holds all that are ``required``.

    What passes can be filled by ``str.format``: no attribute, index, conversion or format is in it. Values
    are never read as a template themselves.
    """

    def check(text: str) -> str:
        held = names_in(text)
        for name in held:
            if name not in names:
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


def _pieces(text: str) -> list[tuple[str, str | None, str | None, str | None]]:
    try:
        return list(Formatter().parse(text))
    except ValueError:
        raise ValueError("a brace stands alone; write {{ or }} where the brace itself is meant") from None


def _listed(names: Collection[str]) -> str:
    return ", ".join(f"{{{name}}}" for name in names)
