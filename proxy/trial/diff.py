"""What differs between two conversations, message by message and word by word."""

import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any, Literal

import msgspec

from proxy.trial.sheet import Line, Span, line, quoted

Written = Mapping[str, Any]
Piece = tuple[Literal["same", "removed", "added"], str]

_WORD = re.compile(r"\w+|\s+|[^\w\s]")
_MOST_WORDS = 4000  # comparing takes the square of it
_ALIKE = 0.4
_STYLES = {"-": "red", "+": "green"}


class Edit(msgspec.Struct, frozen=True):
    """One step from the one conversation to the other; ``before`` and ``after`` are positions."""

    kind: Literal["same", "removed", "added", "changed"]
    before: int
    after: int
    count: int = 1


def edits(before: Sequence[Written], after: Sequence[Written]) -> Iterator[Edit]:
    """The way from ``before`` to ``after``, in order; together its steps cover both."""
    matcher = SequenceMatcher(None, _keys(before), _keys(after), autojunk=False)
    for tag, start, end, other, other_end in matcher.get_opcodes():
        if tag == "equal":
            yield Edit("same", start, other, end - start)
        else:
            yield from _replaced(before, after, range(start, end), range(other, other_end))


def shown(before: Sequence[Written], after: Sequence[Written]) -> Iterator[Line]:
    """The way from ``before`` to ``after`` as lines; what is the same is counted, not repeated."""
    for edit in edits(before, after):
        if edit.kind == "same":
            messages = "message" if edit.count == 1 else "messages"
            yield line(f"  … {edit.count} {messages} unchanged", "dim")
        elif edit.kind == "changed":
            yield from _changed(edit, before[edit.before], after[edit.after])
        elif edit.kind == "removed":
            yield line(f"- {summary(before[edit.before], edit.before)}", _STYLES["-"])
        else:
            yield line(f"+ {summary(after[edit.after], edit.after)}", _STYLES["+"])


def summary(message: Written, position: int | None = None) -> str:
    """A message on one line: where it stands, who speaks, and what."""
    place = [] if position is None else [f"[{position}]"]
    rest = {name: message[name] for name in ("name", "tool_calls", "tool_call_id") if message.get(name)}
    said = [_value(message["content"])] if "content" in message else []
    return " ".join([*place, str(message.get("role", "?")), *said, *([_value(rest)] if rest else [])])


def _keys(messages: Sequence[Written]) -> list[bytes]:
    return [msgspec.json.encode(message, order="sorted") for message in messages]


def _replaced(before: Sequence[Written], after: Sequence[Written], old: range, new: range) -> Iterator[Edit]:
    """Messages that are alike count as one that changed; pairs never cross."""
    place = new.start
    for i in old:
        pair = next((j for j in range(place, new.stop) if _alike(before[i], after[j])), None)
        if pair is None:
            yield Edit("removed", i, place)
            continue
        yield from (Edit("added", i, j) for j in range(place, pair))
        yield Edit("changed", i, pair)
        place = pair + 1
    yield from (Edit("added", old.stop, j) for j in range(place, new.stop))


def _alike(before: Written, after: Written) -> bool:
    if before.get("role") != after.get("role"):
        return False
    one, other = _value(before.get("content"))[1:-1], _value(after.get("content"))[1:-1]
    if one in other or other in one:
        return True
    matcher = SequenceMatcher(None, one[:_MOST_WORDS], other[:_MOST_WORDS], autojunk=False)
    return matcher.real_quick_ratio() > _ALIKE and matcher.quick_ratio() > _ALIKE


def _changed(edit: Edit, before: Written, after: Written) -> Iterator[Line]:
    moved = "" if edit.before == edit.after else f" -> [{edit.after}]"
    yield line(f"~ [{edit.before}]{moved} {after.get('role', '?')}", "yellow")
    for name in {**before, **after}:
        one, other = before.get(name, msgspec.UNSET), after.get(name, msgspec.UNSET)
        if one != other:
            yield from words(name, one, other)


def words(name: str, before: object, after: object, after_name: str = "") -> Iterator[Line]:
    """A value before and after, a line each; words that differ stand out. ``UNSET`` has no line."""
    names = {"-": name, "+": after_name or name}
    one, other = _value(before), _value(after)
    old, new = _spans(one, other) if one and other else ([(one, False)], [(other, False)])
    for sign, text, spans in (("-", one, old), ("+", other, new)):
        style = _STYLES[sign]
        if text:
            yield [(f"  {sign} {names[sign]}: ", style), *(_styled(span, style) for span in spans)]


def _styled(span: tuple[str, bool], style: str) -> Span:
    text, differs = span
    return text, f"bold reverse {style}" if differs else style


def _spans(before: str, after: str) -> tuple[list[tuple[str, bool]], list[tuple[str, bool]]]:
    found = pieces(before, after)
    if found is None:
        return [(before, False)], [(after, False)]
    old = [(text, kind != "same") for kind, text in found if kind != "added"]
    new = [(text, kind != "same") for kind, text in found if kind != "removed"]
    return old, new


def pieces(before: str, after: str, most: int = _MOST_WORDS) -> Sequence[Piece] | None:
    """The way from one text to the other, word by word; ``None`` where one has more than ``most`` words."""
    one, other = _WORD.findall(before), _WORD.findall(after)
    if max(len(one), len(other)) > most:
        return None
    found: list[Piece] = []
    for tag, a, b, c, d in SequenceMatcher(None, one, other, autojunk=False).get_opcodes():
        gone, come = "".join(one[a:b]), "".join(other[c:d])
        steps: list[Piece] = [("same", gone)] if tag == "equal" else [("removed", gone), ("added", come)]
        found += [step for step in steps if step[1]]
    return found


def _value(value: object) -> str:
    if value is msgspec.UNSET:
        return ""
    return quoted(value) if isinstance(value, str) else msgspec.json.encode(value).decode()
