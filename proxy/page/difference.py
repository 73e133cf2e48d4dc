"""The difference between two lists of messages, as rows: removed, added and changed messages and words."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any, Final, Literal

import msgspec
from msgspec import UNSET

from proxy.trial.explain import FilterStep, MessageDict, Piece, edits, pieces

Kind = Literal["same", "removed", "added", "changed"]

_MOST_WORDS: Final = 400
_MOST_ROWS: Final = 200
_MOST_UNFOLDED: Final = 2
_MOST_COMPARED: Final = 400  # comparing takes quadratic time


class Field(msgspec.Struct, frozen=True):
    """A field of a message or a request, before and after, as JSON; ``None`` where it is missing."""

    name: str
    before: str | None
    after: str | None


class DiffRow(msgspec.Struct, frozen=True, kw_only=True):
    """One message, or ``count`` unchanged ones. ``words`` are the edits from the old content to the new."""

    kind: Kind
    count: int = 1
    before: int = 0
    after: int = 0
    role: str = ""
    words: Sequence[Piece] = ()
    fields: Sequence[Field] = ()


class StepDiff(msgspec.Struct, frozen=True, kw_only=True):
    """The effect of one filter; ``tally`` counts its changes in words."""

    number: int
    name: str
    options: str
    changed: bool
    seconds: float
    rows: Sequence[DiffRow]
    fields: Sequence[Field]
    tally: str


def step_diff(number: int, step: FilterStep) -> StepDiff:
    """Returns the effect of the ``number``-th filter; of its rows, the first 200."""
    rows: Sequence[DiffRow] = ()
    if step.changed:
        before, after = ([] if side is UNSET else side for side in (step.before, step.after))
        rows = list(_rows(before, after))
    kinds = [row.kind for row in rows]
    tally = [f"{kinds.count(kind)} {kind}" for kind in ("changed", "removed", "added") if kind in kinds]
    if step.fields:
        tally.append(f"{len(step.fields)} field{'s' if len(step.fields) > 1 else ''} set")
    return StepDiff(
        number=number,
        name=step.filter,
        options=_json(step.options) if step.options else "",
        changed=step.changed,
        seconds=step.microseconds / 1e6,
        rows=rows[:_MOST_ROWS],
        fields=[_field(change.name, change.before, change.after) for change in step.fields],
        tally=", ".join(tally),
    )


def diff_rows(before: Sequence[MessageDict], after: Sequence[MessageDict]) -> Sequence[DiffRow]:
    """Returns the difference between two conversations, 200 rows at most."""
    return list(_rows(before, after))[:_MOST_ROWS]


def unchanged_rows(messages: Sequence[MessageDict]) -> Sequence[DiffRow]:
    """Returns a row for each of the newest 400 messages, behind a row that counts the older ones."""
    skipped = max(0, len(messages) - _MOST_COMPARED)
    older = [DiffRow(kind="same", count=skipped, role="older")] if skipped else []
    return [*older, *(_row("same", i, i, {}, message) for i, message in enumerate(messages[skipped:]))]


class DiffGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Consecutive rows of one kind; ``is_folded`` for more than two that are not changed messages."""

    kind: Kind
    is_folded: bool
    rows: Sequence[DiffRow]


def grouped_rows(before: Sequence[MessageDict], after: Sequence[MessageDict]) -> Sequence[DiffGroup]:
    """Groups the rows of two conversations, unchanged messages included; never folds the last two."""
    skipped = max(0, len(after) - _MOST_COMPARED)
    rows = [DiffRow(kind="same", count=skipped, role="older")] if skipped else []
    for row in _rows(before[-_MOST_COMPARED:], after[skipped:]):
        if row.kind == "same":
            rows += [_row("same", 0, 0, {}, after[skipped + row.after + i]) for i in range(row.count)]
        else:
            rows.append(row)
    groups: list[DiffGroup] = []
    for part in (rows[:-2], rows[-2:]):
        for kind, members in groupby(part, attrgetter("kind")):
            group = list(members)
            groups.append(
                DiffGroup(kind=kind, is_folded=kind != "changed" and len(group) > _MOST_UNFOLDED, rows=group)
            )
    return groups


def _rows(before: Sequence[MessageDict], after: Sequence[MessageDict]) -> Iterator[DiffRow]:
    """Compares the newest 400 messages on both sides; the older ones are only counted."""
    skipped = [max(0, len(side) - _MOST_COMPARED) for side in (before, after)]
    if any(skipped):
        yield DiffRow(kind="same", count=max(skipped), role="older")
    before, after = before[skipped[0] :], after[skipped[1] :]
    for edit in edits(before, after):
        if edit.kind == "same":
            yield DiffRow(kind="same", count=edit.count, before=edit.before, after=edit.after)
        else:
            one = {} if edit.kind == "added" else before[edit.before]
            other = {} if edit.kind == "removed" else after[edit.after]
            yield _row(edit.kind, edit.before, edit.after, one, other)


def _row(kind: Kind, before: int, after: int, one: MessageDict, other: MessageDict) -> DiffRow:
    """The row of a message, with its positions; ``one`` or ``other`` is empty where it is missing."""
    old, new = _content(one), _content(other)
    words: Sequence[Piece] | None = ()
    if kind == "changed":
        words = pieces(old, new, _MOST_WORDS)
    elif old or new:
        words = [(kind, old or new)]
    return DiffRow(
        kind=kind,
        before=before,
        after=after,
        role=str((other or one).get("role")),
        words=[("removed", old), ("added", new)] if words is None else words,
        fields=[
            _field(name, one.get(name, UNSET), other.get(name, UNSET))
            for name in {**one, **other}
            if name not in {"role", "content"} and (kind != "changed" or one.get(name) != other.get(name))
        ],
    )


def _field(name: str, before: Any, after: Any) -> Field:
    return Field(name, None if before is UNSET else _json(before), None if after is UNSET else _json(after))


def _content(message: MessageDict) -> str:
    """The content as text, with a mark for each part that is not text."""
    content = message.get("content")
    if not isinstance(content, list):
        return content if isinstance(content, str) else ""
    texts = []
    for part in content:
        if isinstance(part, dict) and isinstance(part.get("text"), str):
            texts.append(str(part["text"]))
        else:
            texts.append(f"[{part.get('type', 'part') if isinstance(part, dict) else 'part'}]")
    return "\n".join(texts)


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
