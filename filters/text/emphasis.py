"""Stars and underscores: which of them are Markdown's, and which mean what they are."""

import unicodedata

# Behind an opening mark, these tell that it opens nothing: ``*.txt``.
_NEVER_OPENED = ".,;:/)"
# Scripts below this put spaces between words.
_FIRST_UNSPACED = "\u0e00"


class Emphasis:
    """Which emphasis stands open on a line, as the marks come one after the other."""

    def __init__(self) -> None:
        self._open: frozenset[str] = frozenset()

    def is_mark(self, run: str, before: str, after: str) -> bool:
        """Whether a run of one to four ``*`` or ``_`` is a mark, which then opens or closes emphasis.

        ``before`` and ``after`` are the characters around it; empty where the text ends.
        """
        if len(run) > 3 or before == run[0]:  # noqa: PLR2004
            return True
        kind = run[0] * min(len(run), 2)
        is_open = kind in self._open
        marks = (_is_strong if len(run) > 1 else _is_emphasis)(run[0], before, after, is_open=is_open)
        if marks:
            self._open = self._open ^ {kind} if is_open or not _is_blank(after) else self._open
        return marks


def inside_word(before: str, after: str) -> bool:
    """Whether what stands between the two stands inside a word, in a script that spaces its words.

    There it is the writer's own: ``2**3``, ``Lehrer*innen``.
    """
    return all(_is_word(each) and each < _FIRST_UNSPACED for each in (before, after))


def _is_strong(mark: str, before: str, after: str, *, is_open: bool) -> bool:
    if _is_blank(before) and _is_blank(after):
        return is_open
    if mark == "_":
        return is_open or not (_is_word(before) and _is_word(after))
    return is_open or not inside_word(before, after)


def _is_emphasis(mark: str, before: str, after: str, *, is_open: bool) -> bool:
    if _is_blank(before) and _is_blank(after):
        return is_open and after in {"", "\n"}
    if _is_word(before) and _is_word(after):
        return mark == "*" and (is_open or not inside_word(before, after))
    # *67 is dialled.
    is_literal = after.isdigit() or after in _NEVER_OPENED or _is_word(before)
    return is_open or not (_is_blank(after) or is_literal)


def _is_blank(character: str) -> bool:
    return not character or character.isspace()


def _is_word(character: str) -> bool:
    return bool(character) and unicodedata.category(character)[0] in "LMN"
