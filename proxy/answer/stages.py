"""One choice of one answer on its way through all answer filters."""

from collections.abc import Iterable, Sequence
from typing import Any

from filters.base import AnswerFilter, Context, Delta, Stage
from filters.message import is_text
from proxy.failing import failed

# Said once for each choice; everything else in a delta adds to what came before it.
_NO_ADDITION = frozenset({"role"})


class Stages:
    """The stages of all filters for one choice, as one: what one lets through, the next is fed with."""

    __slots__ = ("_stages",)

    def __init__(self, filters: Iterable[AnswerFilter], context: Context) -> None:
        opened = (each.open(context) for each in filters)
        self._stages: Sequence[Stage] = [stage for stage in opened if stage is not None]

    def __bool__(self) -> bool:
        """Whether any stage looks at what passes; where none does, deltas need not be read at all."""
        return bool(self._stages)

    def feed(self, delta: Delta) -> Delta:
        """What goes on of a delta; the very same object where nothing changes."""
        for stage in self._stages:
            try:
                delta = stage.feed(delta)
            except Exception as error:  # noqa: BLE001 - a filter of the user's own may raise anything
                raise failed(stage, error) from None
        return delta

    def close(self) -> Delta:
        """All that was held back; empty where nothing was, and when it is called again.

        Every stage is closed exactly once, even where one raises; the error is raised when all are closed.
        """
        stages, self._stages = self._stages, ()
        return _closed(stages, {})


def said(filters: Iterable[AnswerFilter], context: Context, pieces: Iterable[str]) -> str:
    """The words that a client gets of an answer that comes in these pieces."""
    stages = Stages(filters, context)
    deltas = [stages.feed({"content": piece}) for piece in pieces]
    return "".join(delta.get("content") or "" for delta in [*deltas, stages.close()])


def joined(first: Delta, second: Delta) -> Delta:
    """What two deltas in a row add, as one delta; one of them itself where the other is empty."""
    if not (first and second):
        return first or second
    both = {name: _sum(first[name], second[name]) for name in first.keys() & second.keys() - _NO_ADDITION}
    return {**first, **second, **both}


def _closed(stages: Sequence[Stage], held: Delta) -> Delta:
    """What comes out at the end when ``held`` goes in at the front and every stage is closed."""
    if not stages:
        return held
    try:
        held = _ended(stages[0], held)
    except Exception as error:  # noqa: BLE001 - as in feeding
        _closed(stages[1:], {})
        raise failed(stages[0], error) from None
    return _closed(stages[1:], held)


def _ended(stage: Stage, held: Delta) -> Delta:
    try:
        fed = stage.feed(held) if held else held
    except BaseException:
        stage.close()
        raise
    return joined(fed, stage.close())


def _sum(first: object, second: object) -> object:
    if isinstance(first, str) and isinstance(second, str):
        return first + second
    if isinstance(first, list) or isinstance(second, list):
        return _parts_of(first, second)
    return first if second is None else second


def _parts_of(first: object, second: object) -> object:
    """Content of which some came in parts; words behind a part that is words belong to it."""
    before, behind = _as_parts(first), _as_parts(second)
    if isinstance(second, str) and before and isinstance(before[-1], dict) and is_text(before[-1]):
        return [*before[:-1], {**before[-1], "text": before[-1]["text"] + second}]
    return [*before, *behind]


def _as_parts(content: object) -> list[Any]:
    if isinstance(content, list):
        return content
    return [{"type": "text", "text": content}] if isinstance(content, str) and content else []
