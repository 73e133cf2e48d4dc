"""Markdown taken out of text while it arrives: the words stay, the marks go."""

import re
from collections.abc import Callable, Mapping
from typing import ClassVar

from filters.text.block import BLANKS, BlockOpening, opening
from filters.text.emphasis import Emphasis, inside_word
from filters.text.rewriter import Arriving, Rewriter
from filters.text.tag import tag_at

_Step = tuple[int, str]
_Rule = Callable[["Markdown", Arriving, int], _Step]

_SPECIAL = re.compile(r"[*_~`\[\]<\\|!#\n]")
_SPECIAL_IN_ROW = re.compile(r"[*_~`\[\]<\\|!#\n \t]")
_SPECIAL_IN_CODE = re.compile(r"[`\n]")
_ESCAPED = frozenset("*_~`#|<>[]\\")
_RUN = {mark: re.compile(re.escape(mark) + "{0,4}") for mark in "*_~`"}
_HASHES = re.compile("#{0,6}")
_FENCE = {mark: re.compile(mark + "{0,10}") for mark in "`~"}
_CAPTION = re.compile(r"[^\[\]\n]{0,120}")
_NOTE = re.compile(r"[\w-]{0,20}")
_TARGET = re.compile(r"[^\s()]+")
_TITLE = {'"': re.compile(r'[^"\n]{0,120}'), "'": re.compile(r"[^'\n]{0,120}")}


class Markdown(Rewriter):
    """Takes Markdown's marks out, and HTML's tags where ``html`` says so."""

    def __init__(self, *, html: bool) -> None:
        super().__init__()
        self._html = html
        self._mode: _Rule = Markdown._block
        self._within = self._heading = self._row = self._linked = False
        self._emphasis = Emphasis()
        self._mark = ""
        self._depth = 0

    def _is_plain(self, text: str) -> bool:
        return self._mode is Markdown._inline and not self._row and _SPECIAL.search(text) is None

    def _step(self, arriving: Arriving, i: int) -> _Step:
        return self._mode(self, arriving, i)

    # --- where a line begins

    def _block(self, arriving: Arriving, i: int) -> _Step:
        if arriving.at(i) in {" ", "\t"}:
            return i + 1, "" if self._within else arriving.at(i)
        found = opening(arriving, i, within=self._within)
        if found is None:
            self._mode, self._within = Markdown._inline, False
            return i, ""
        self._open(found)
        return found.end, ""

    def _open(self, found: BlockOpening) -> None:
        self._within, self._mark = True, found.mark
        self._heading, self._row = found.kind == "heading", found.kind == "row"
        mode = {"row": Markdown._inline, "rule": Markdown._rule_off, "fence": Markdown._fence_line}
        self._mode = mode.get(found.kind, Markdown._block)

    def _line_end(self, arriving: Arriving, i: int) -> _Step:
        self._begin_line()
        return i + 1, "\n"

    def _begin_line(self) -> None:
        self._mode = Markdown._block
        self._within = self._heading = self._row = self._linked = False
        self._emphasis = Emphasis()

    def _rule_off(self, arriving: Arriving, i: int) -> _Step:
        if arriving.at(i) in self._mark:
            return i + 1, ""
        self._begin_line()
        return i + (arriving.at(i) == "\n"), ""

    # --- code

    def _fence_line(self, arriving: Arriving, i: int) -> _Step:
        start = arriving.past(BLANKS, i)
        if all(arriving.at(start + n) == self._mark for n in range(3)):
            end = arriving.past(BLANKS, arriving.past(_FENCE[self._mark], start))
            if arriving.at(end) in {"", "\n"}:
                self._begin_line()
                return end + len(arriving.at(end)), ""
        self._mode = Markdown._fenced
        return i, ""

    def _fenced(self, arriving: Arriving, i: int) -> _Step:
        end = arriving.text.find("\n", i) + 1
        if end:
            self._mode = Markdown._fence_line
        end = end or len(arriving.text)
        return end, arriving.text[i:end]

    def _ticks(self, arriving: Arriving, i: int) -> _Step:
        end = arriving.past(_RUN["`"], i)
        if end == i + 1 and inside_word(arriving.before(i), arriving.at(end)):
            return end, "'"
        self._mode, self._mark = Markdown._code, arriving.text[i:end]
        return end, ""

    def _code(self, arriving: Arriving, i: int) -> _Step:
        found = _SPECIAL_IN_CODE.search(arriving.text, i)
        start = found.start() if found else len(arriving.text)
        if start > i:
            return start, arriving.text[i:start]
        if arriving.at(i) == "\n":
            return self._line_end(arriving, i)
        end = arriving.past(_RUN["`"], i)
        self._mode = Markdown._inline if arriving.text[i:end] == self._mark else Markdown._code
        return end, ""

    # --- within a line

    def _inline(self, arriving: Arriving, i: int) -> _Step:
        found = (_SPECIAL_IN_ROW if self._row else _SPECIAL).search(arriving.text, i)
        start = found.start() if found else len(arriving.text)
        if start > i:
            return start, arriving.text[i:start]
        return self._rules[arriving.at(i)](self, arriving, i)

    def _emphasised(self, arriving: Arriving, i: int) -> _Step:
        end = arriving.past(_RUN[arriving.at(i)], i)
        run = arriving.text[i:end]
        return end, "" if self._emphasis.is_mark(run, arriving.before(i), arriving.at(end)) else run

    def _tildes(self, arriving: Arriving, i: int) -> _Step:
        end = arriving.past(_RUN["~"], i)
        is_mark = end > i + 1 or arriving.before(i) == "~"
        return end, "" if is_mark else "~"

    def _hashes(self, arriving: Arriving, i: int) -> _Step:
        if self._heading and arriving.before(i) in {" ", "\t"}:
            end = arriving.past(BLANKS, arriving.past(_HASHES, i))
            if arriving.at(end) in {"", "\n"}:
                return end, ""
        return i + 1, "#"

    def _escape(self, arriving: Arriving, i: int) -> _Step:
        after = arriving.at(i + 1)
        return (i + 2, after) if after in _ESCAPED else (i + 1, "\\")

    def _tag(self, arriving: Arriving, i: int) -> _Step:
        return (tag_at(arriving, i) if self._html else None) or (i + 1, "<")

    # --- links

    def _image(self, arriving: Arriving, i: int) -> _Step:
        is_image = not arriving.before(i).isalnum() and _is_caption(arriving, i + 1)
        return i + 1, "" if is_image else "!"

    def _caption(self, arriving: Arriving, i: int) -> _Step:
        if _is_caption(arriving, i):
            self._linked = True
            return i + 1, ""
        note = arriving.past(_NOTE, i + 2) if arriving.at(i + 1) == "^" else i
        is_note = note > i + 2 and arriving.at(note) == "]"
        return (note + 1, "") if is_note else (i + 1, "[")

    def _caption_end(self, arriving: Arriving, i: int) -> _Step:
        if not self._linked:
            return i + 1, "]"
        self._linked, self._depth, self._mode = False, 0, Markdown._target
        return i + 1, ""

    def _target(self, arriving: Arriving, i: int) -> _Step:
        found = _TARGET.match(arriving.text, i)
        if found:
            return found.end(), ""
        first = arriving.at(i)
        if first in {"(", ")"}:
            self._depth += 1 if first == "(" else -1
            self._mode = Markdown._target if self._depth else Markdown._inline
            return i + 1, ""
        end = _title_end(arriving, i)
        self._mode = Markdown._target if end else Markdown._inline
        return end or i, ""

    # --- tables

    def _pipe(self, arriving: Arriving, i: int) -> _Step:
        if not self._row:
            is_apart = arriving.before(i).isspace() and arriving.at(i + 1).isspace()
            return i + 1, "," if is_apart else "|"
        end = arriving.past(BLANKS, i + 1)
        return end, "" if arriving.at(end) in {"", "\n"} else ", "

    def _padding(self, arriving: Arriving, i: int) -> _Step:
        end = arriving.past(BLANKS, i)
        return end, "" if arriving.at(end) in {"", "\n", "|"} else " "

    _rules: ClassVar[Mapping[str, _Rule]] = {
        "\n": _line_end,
        "*": _emphasised,
        "_": _emphasised,
        "~": _tildes,
        "`": _ticks,
        "#": _hashes,
        "\\": _escape,
        "<": _tag,
        "!": _image,
        "[": _caption,
        "]": _caption_end,
        "|": _pipe,
        " ": _padding,
        "\t": _padding,
    }


def _is_caption(arriving: Arriving, i: int) -> bool:
    if arriving.at(i) != "[":
        return False
    end = arriving.past(_CAPTION, i + 1)
    return arriving.at(end) == "]" and arriving.at(end + 1) == "("


def _title_end(arriving: Arriving, i: int) -> int | None:
    """Where a link's title ends, or the blanks behind its target; ``None`` where it was no target."""
    start = arriving.past(BLANKS, i)
    mark = arriving.at(start)
    if mark not in _TITLE:
        return start if mark == ")" and start > i else None
    end = arriving.past(_TITLE[mark], start + 1)
    return end + 1 if arriving.at(end) == mark else None
