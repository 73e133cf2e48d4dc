"""What a filter did to the messages, as rows: what went, what came, and which words changed."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import msgspec
from msgspec import UNSET

from proxy.trial.diff import MessageDict, Piece, edits, pieces
from proxy.trial.explain import FieldChange, FilterStep

Kind = Literal["same", "removed", "added", "changed"]

_MOST_WORDS = 400
_MOST_ROWS = 200
_MOST_COMPARED = 400  # finding out which is which takes the square of it


class Field(msgspec.Struct, frozen=True):
    """A field beside the words, before and after; a text as JSON writes it, ``None`` where there is none."""

    name: str
    before: str | None
    after: str | None


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One message, or ``count`` that are the same. ``words`` is the way from what it said to what it says."""

    kind: Kind
    count: int = 1
    before: int = 0
    after: int = 0
    role: str = ""
    words: Sequence[Piece] = ()
    fields: Sequence[Field] = ()


class Filtered(msgspec.Struct, frozen=True, kw_only=True):
    """A filter and what it did."""

    number: int
    name: str
    options: str
    changed: bool
    seconds: float
    rows: Sequence[Row]
    fields: Sequence[Field]
    tally: str


def filtered(number: int, step: FilterStep) -> Filtered:
    """What one filter did, the ``number``-th."""
    rows = list(_rows(_there(step.before), _there(step.after))) if step.changed else []
    return Filtered(
        number=number,
        name=step.filter,
        options=_json(step.options) if step.options else "",
        changed=step.changed,
        seconds=step.microseconds / 1e6,
        rows=rows[:_MOST_ROWS],
        fields=[_changed(change) for change in step.fields],
        tally=_tally(rows, step.fields),
    )


def differences(before: Sequence[MessageDict], after: Sequence[MessageDict]) -> Sequence[Row]:
    """The way from one conversation to another."""
    return list(_rows(before, after))[:_MOST_ROWS]


def plain(messages: Sequence[MessageDict]) -> Sequence[Row]:
    """Messages as they are, the newest of many."""
    passed = max(0, len(messages) - _MOST_COMPARED)
    older = [Row(kind="same", count=passed, role="older")] if passed else []
    return [*older, *(_row("same", message, i, i) for i, message in enumerate(messages[passed:]))]


def _rows(before: Sequence[MessageDict], after: Sequence[MessageDict]) -> Iterator[Row]:
    """The newest messages on both sides; those before them are counted, and not compared."""
    passed = max(0, len(before) - _MOST_COMPARED), max(0, len(after) - _MOST_COMPARED)
    if any(passed):
        yield Row(kind="same", count=max(passed), role="older")
    yield from _compared(before[passed[0] :], after[passed[1] :])


def _compared(before: Sequence[MessageDict], after: Sequence[MessageDict]) -> Iterator[Row]:
    for edit in edits(before, after):
        if edit.kind == "same":
            yield Row(kind="same", count=edit.count, before=edit.before, after=edit.after)
        elif edit.kind == "changed":
            yield _altered(before[edit.before], after[edit.after], edit.before, edit.after)
        else:
            message = (before if edit.kind == "removed" else after)[
                edit.before if edit.kind == "removed" else edit.after
            ]
            yield _row(edit.kind, message, edit.before, edit.after)


def _row(kind: Kind, message: MessageDict, before: int, after: int) -> Row:
    said = _said(message)
    way: Kind = kind if kind in {"removed", "added"} else "same"
    rest = {name: value for name, value in message.items() if name not in {"role", "content"}}
    gone = kind == "removed"
    fields = [
        Field(name, _json(value), None) if gone else Field(name, None, _json(value))
        for name, value in rest.items()
    ]
    words: Sequence[Piece] = [(way, said)] if said and way != "changed" else []
    return Row(
        kind=kind, before=before, after=after, role=str(message.get("role")), words=words, fields=fields
    )


def _altered(one: MessageDict, other: MessageDict, before: int, after: int) -> Row:
    said, says = _said(one), _said(other)
    words = pieces(said, says, _MOST_WORDS)
    names = [name for name in {**one, **other} if name not in {"role", "content"}]
    return Row(
        kind="changed",
        before=before,
        after=after,
        role=str(other.get("role")),
        words=[("removed", said), ("added", says)] if words is None else words,
        fields=[
            _field(n, one.get(n, UNSET), other.get(n, UNSET)) for n in names if one.get(n) != other.get(n)
        ],
    )


def _changed(change: FieldChange) -> Field:
    return _field(change.name, change.before, change.after)


def _field(name: str, before: Any, after: Any) -> Field:
    return Field(name, None if before is UNSET else _json(before), None if after is UNSET else _json(after))


def _said(message: MessageDict) -> str:
    """The words, with a mark for each part that is no text."""
    content = message.get("content")
    if not isinstance(content, list):
        return content if isinstance(content, str) else ""
    return "\n".join(map(_part, content))


def _part(part: object) -> str:
    if isinstance(part, dict) and isinstance(part.get("text"), str):
        return str(part["text"])
    return f"[{part.get('type', 'part') if isinstance(part, dict) else 'part'}]"


def _tally(rows: Sequence[Row], fields: Sequence[FieldChange]) -> str:
    kinds = [row.kind for row in rows]
    counted = [(kinds.count(kind), kind) for kind in ("changed", "removed", "added")]
    said = [f"{count} {kind}" for count, kind in counted if count]
    if fields:
        said.append(f"{len(fields)} field{'s' if len(fields) > 1 else ''} set")
    return ", ".join(said)


def _there(messages: Any) -> Sequence[Mapping[str, Any]]:
    return [] if messages is UNSET else messages


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
