"""Names that stand in a configuration, and those that were meant."""

import re
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Final

# What others call it; it counts where the right word can stand, and the wrong one cannot.
_ELSEWHERE: Final = {
    "endpoint": "base_url",
    "filters": "request",
    "key": "api_key",
    "steps": "request",
    "store": "sessions",
    "url": "base_url",
}
_WORD = re.compile(r"[A-Za-z0-9_.-]{1,64}")


def is_word(text: str) -> bool:
    """Whether a text can be shown in a message: anything longer, or stranger, may be a slipped-in secret."""
    return bool(_WORD.fullmatch(text))


def quoted(text: str) -> str:
    """A name in quotes, with a space before it; empty where it is not one to show."""
    shown = repr(text)
    return f" {shown}" if is_word(text) and shown == f"'{text}'" else ""


def alternatives(text: str, known: Iterable[str]) -> str:
    """What may have been meant, and all that there is, as the rest of a sentence."""
    names = list(known)
    other = _ELSEWHERE.get(text)
    near = [other] if other in names else get_close_matches(text, names, n=1)
    meant = f"did you mean {near[0]!r}? " if near else ""
    return f"; {meant}There are: {', '.join(names)}" if names else "; there are none here"
