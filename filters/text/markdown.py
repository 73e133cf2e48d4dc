"""Removes Markdown's marks from text while it arrives; the words stay."""

import re
import unicodedata
from collections.abc import Callable, Mapping
from typing import ClassVar, Literal

import msgspec

from filters.text.rewriter import Arriving, Rewriter

_Step = tuple[int, str]
_SPECIAL = re.compile(r"[*_~`\[\]<\\|!#\n]")
_SPECIAL_IN_ROW = re.compile(r"[*_~`\[\]<\\|!#\n \t]")
_SPECIAL_IN_CODE = re.compile(r"[`\n]")
_ESCAPED = frozenset("*_~`#|<>[]\\")
_RUN = {mark: re.compile(re.escape(mark) + "{0,4}") for mark in "*_~`"}
_HASHES = re.compile("#{0,6}")
_LEADING_HASHES = re.compile("#{0,7}")
_FENCE = {mark: re.compile(mark + "{0,10}") for mark in "`~"}
_CAPTION = re.compile(r"[^\[\]\n]{0,120}")
_NOTE = re.compile(r"[\w-]{0,20}")
_TARGET = re.compile(r"[^\s()]+")
_TITLE = {'"': re.compile(r'[^"\n]{0,120}'), "'": re.compile(r"[^'\n]{0,120}")}
_BLANKS = re.compile(r"[ \t]{0,60}")
_ENDS = frozenset({"", " ", "\t", "\n"})
_LANGUAGE = re.compile(r"[^`~\n]{0,40}")
_DASHES = re.compile("-{0,60}")
_BULLETS = frozenset("-+*•◦‣▪●○")
# The characters that begin a rule when they stand there three times, and those that the rule may contain.
_RULES = {"-": "-|:+ \t", "=": "= \t", "*": "* \t", "_": "_ \t"}
_CELL = re.compile(r"[^|\n]{0,60}")
# A mark before one of these does not open emphasis: ``*.txt``.
_NEVER_OPENED = ".,;:/)"
# Scripts below this put spaces between words.
_FIRST_UNSPACED = "\u0e00"
_INLINE = re.compile("a|abbr|b|cite|code|del|em|font|i|ins|kbd|small|span|strong|sup|u")
_BLOCK = re.compile(
    "blockquote|br|center|details|div|h[1-6]|hr|img|li|ol|p|pre|summary|table|tbody|td|tfoot|th|thead|tr|ul"
)
_NAME = re.compile(r"[A-Za-z0-9]{0,12}")
_REST = re.compile(r"[^<>\n]{0,120}")
_Rule = Callable[["Markdown", Arriving, int], _Step]


class _BlockOpening(msgspec.Struct, frozen=True):
    """A mark at the beginning of a line, and its end.

    ``mark`` is the character that closes a fence, or the characters that a rule may contain.
    """

    end: int
    kind: Literal["marker", "heading", "fence", "row", "rule"] = "marker"
    mark: str = ""


class Markdown(Rewriter):
    """Removes Markdown's marks, and with ``html`` also HTML tags."""

    def __init__(self, *, html: bool) -> None:
        super().__init__()
        self._html = html
        self._mode: _Rule = Markdown._block
        self._within = self._heading = self._row = self._linked = False
        self._emphasis = _Emphasis()
        self._mark = ""
        self._depth = 0

    def _is_plain(self, text: str) -> bool:
        return self._mode is Markdown._inline and not self._row and _SPECIAL.search(text) is None

    def _step(self, arriving: Arriving, i: int) -> _Step:
        return self._mode(self, arriving, i)

    # --- the beginning of a line

    def _block(self, arriving: Arriving, i: int) -> _Step:
        if arriving.at(i) in {" ", "\t"}:
            return i + 1, "" if self._within else arriving.at(i)
        opening = _opening(arriving, i, within=self._within)
        if opening is None:
            self._mode, self._within = Markdown._inline, False
            return i, ""
        self._open(opening)
        return opening.end, ""

    def _open(self, start: _BlockOpening) -> None:
        self._within, self._mark = True, start.mark
        self._heading, self._row = start.kind == "heading", start.kind == "row"
        mode = {"row": Markdown._inline, "rule": Markdown._rule_off, "fence": Markdown._fence_line}
        self._mode = mode.get(start.kind, Markdown._block)

    def _line_end(self, arriving: Arriving, i: int) -> _Step:
        self._begin_line()
        return i + 1, "\n"

    def _begin_line(self) -> None:
        self._mode = Markdown._block
        self._within = self._heading = self._row = self._linked = False
        self._emphasis = _Emphasis()

    def _rule_off(self, arriving: Arriving, i: int) -> _Step:
        if arriving.at(i) in self._mark:
            return i + 1, ""
        self._begin_line()
        return i + (arriving.at(i) == "\n"), ""

    # --- code

    def _fence_line(self, arriving: Arriving, i: int) -> _Step:
        start = arriving.past(_BLANKS, i)
        if all(arriving.at(start + n) == self._mark for n in range(3)):
            end = arriving.past(_BLANKS, arriving.past(_FENCE[self._mark], start))
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
        if end == i + 1 and _inside_word(arriving.before(i), arriving.at(end)):
            return end, "'"
        self._mode, self._mark = Markdown._code, arriving.text[i:end]
        return end, ""

    def _code(self, arriving: Arriving, i: int) -> _Step:
        match = _SPECIAL_IN_CODE.search(arriving.text, i)
        start = match.start() if match else len(arriving.text)
        if start > i:
            return start, arriving.text[i:start]
        if arriving.at(i) == "\n":
            return self._line_end(arriving, i)
        end = arriving.past(_RUN["`"], i)
        self._mode = Markdown._inline if arriving.text[i:end] == self._mark else Markdown._code
        return end, ""

    # --- within a line

    def _inline(self, arriving: Arriving, i: int) -> _Step:
        match = (_SPECIAL_IN_ROW if self._row else _SPECIAL).search(arriving.text, i)
        start = match.start() if match else len(arriving.text)
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
            end = arriving.past(_BLANKS, arriving.past(_HASHES, i))
            if arriving.at(end) in {"", "\n"}:
                return end, ""
        return i + 1, "#"

    def _escape(self, arriving: Arriving, i: int) -> _Step:
        after = arriving.at(i + 1)
        return (i + 2, after) if after in _ESCAPED else (i + 1, "\\")

    def _tag(self, arriving: Arriving, i: int) -> _Step:
        if not self._html:
            return i + 1, "<"
        start = i + 1 + (arriving.at(i + 1) == "/")
        behind = arriving.past(_NAME, start)
        name = arriving.text[start:behind].lower()
        is_block = _BLOCK.fullmatch(name) is not None
        if not (is_block or _INLINE.fullmatch(name)) or arriving.at(behind) not in {" ", "/", ">"}:
            return i + 1, "<"
        end = arriving.past(_REST, behind)
        rest = arriving.text[behind:end].strip(" /")
        # ``a <b and c> d`` holds no tag: attributes have values.
        if arriving.at(end) != ">" or (rest and "=" not in rest):
            return i + 1, "<"
        return end + 1, "\n" if is_block else ""

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
        match = _TARGET.match(arriving.text, i)
        if match:
            return match.end(), ""
        first = arriving.at(i)
        if first in {"(", ")"}:
            self._depth += 1 if first == "(" else -1
            self._mode = Markdown._target if self._depth else Markdown._inline
            return i + 1, ""
        # A title, or blanks before the end; otherwise this was no link target.
        start, end = arriving.past(_BLANKS, i), 0
        mark = arriving.at(start)
        if mark in _TITLE:
            close = arriving.past(_TITLE[mark], start + 1)
            end = close + 1 if arriving.at(close) == mark else 0
        elif mark == ")" and start > i:
            end = start
        self._mode = Markdown._target if end else Markdown._inline
        return end or i, ""

    # --- tables

    def _pipe(self, arriving: Arriving, i: int) -> _Step:
        if not self._row:
            is_apart = arriving.before(i).isspace() and arriving.at(i + 1).isspace()
            return i + 1, "," if is_apart else "|"
        end = arriving.past(_BLANKS, i + 1)
        return end, "" if arriving.at(end) in {"", "\n"} else ", "

    def _padding(self, arriving: Arriving, i: int) -> _Step:
        end = arriving.past(_BLANKS, i)
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


def _opening(arriving: Arriving, i: int, *, within: bool) -> _BlockOpening | None:
    """The mark at ``i``, or ``None``; ``within`` is whether it follows another one. Raises Undecided."""
    mark = arriving.at(i)
    match mark:
        case "[":
            is_box = within and arriving.at(i + 1) in {" ", "x", "X"} and arriving.at(i + 2) == "]"
            end = i + 3 if is_box and arriving.at(i + 3) in _ENDS else i
        case ">":
            after = arriving.at(i + 1)
            end = i if after == "=" or after.isdigit() else i + 1
        case "#":
            end = arriving.past(_LEADING_HASHES, i)
            is_heading = end - i < 7 and arriving.at(end) in _ENDS  # noqa: PLR2004
            return _BlockOpening(end, "heading") if is_heading else None
        case "`" | "~":
            if not _is_triple(arriving, i):
                return None
            language = arriving.past(_FENCE[mark], i)
            end = arriving.past(_LANGUAGE, language)
            after = arriving.at(end)
            is_last = not after and len(arriving.text[language:end].split()) < 2  # noqa: PLR2004
            is_fence = after == "\n" or is_last
            return _BlockOpening(end + len(after), "fence", mark) if is_fence else None
        case "|":
            return _row(arriving, i)
        case _:
            end = i + 1 if mark in _BULLETS and arriving.at(i + 1) in _ENDS else i
            rule = _RULES.get(mark)
            if end == i and rule and _is_triple(arriving, i):
                is_rule = mark in {"-", "="} or arriving.at(i + 3) in _ENDS | {mark}
                return _BlockOpening(i + 3, "rule", rule) if is_rule else None
    return _BlockOpening(end) if end > i else None


def _row(arriving: Arriving, i: int) -> _BlockOpening | None:
    # The line below a table's head: ``|:---|``.
    start = arriving.past(_BLANKS, i + 1)
    start += arriving.at(start) == ":"
    dashes = arriving.past(_DASHES, start)
    end = dashes + (arriving.at(dashes) == ":")
    if dashes > start and arriving.at(arriving.past(_BLANKS, end)) in {"|", "\n", ""}:
        return _BlockOpening(i + 1, "rule", "|-:+ \t")
    if arriving.at(i + 1) in {" ", "\t"}:
        return _BlockOpening(arriving.past(_BLANKS, i + 1), "row")
    end = arriving.past(_CELL, i + 1)
    is_row = end > i + 1 and arriving.at(end) == "|" and arriving.at(end + 1) not in _ENDS
    return _BlockOpening(i + 1, "row") if is_row else None


def _is_triple(arriving: Arriving, i: int) -> bool:
    return arriving.at(i + 1) == arriving.at(i) and arriving.at(i + 2) == arriving.at(i)


class _Emphasis:
    """The emphasis that is open on a line after each mark."""

    def __init__(self) -> None:
        self._open: frozenset[str] = frozenset()

    def is_mark(self, run: str, before: str, after: str) -> bool:
        """Whether a run of one to four ``*`` or ``_`` is a mark; if so, it opens or closes emphasis.

        ``before`` and ``after`` are the characters around it; empty at the ends of the text.
        """
        if len(run) > 3 or before == run[0]:  # noqa: PLR2004
            return True
        mark, is_strong = run[0], len(run) > 1
        kind = mark * min(len(run), 2)
        is_open = kind in self._open
        if _is_blank(before) and _is_blank(after):
            is_mark = is_open and (is_strong or after in {"", "\n"})
        elif _is_word(before) and _is_word(after):
            opens = mark == "*" and not _inside_word(before, after)
            is_mark = opens or (is_open and (is_strong or mark == "*"))
        else:
            # *67 is a number to dial.
            is_literal = after.isdigit() or after in _NEVER_OPENED or _is_word(before)
            is_mark = is_strong or is_open or not (_is_blank(after) or is_literal)
        if is_mark and (is_open or not _is_blank(after)):
            self._open = self._open ^ {kind}
        return is_mark


def _inside_word(before: str, after: str) -> bool:
    """Whether a mark between these characters is inside a word, in a script with spaces between words.

    Such a mark is part of the text: ``2**3``, ``Lehrer*innen``.
    """
    return all(_is_word(each) and each < _FIRST_UNSPACED for each in (before, after))


def _is_blank(character: str) -> bool:
    return not character or character.isspace()


def _is_word(character: str) -> bool:
    return bool(character) and unicodedata.category(character)[0] in "LMN"
