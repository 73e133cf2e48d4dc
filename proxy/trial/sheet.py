"""Lines for people: with colours for a terminal, plain and always the same everywhere else."""

import json
import re
from collections.abc import Iterable, Sequence

Span = tuple[str, str]
"""Some text, and rich's name for how it looks."""
Line = Sequence[Span]

# A terminal would act on controls, and bidirectional marks would show a text in another order.
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def line(text: str = "", style: str = "") -> Line:
    """A line that looks the same from end to end."""
    return [(text, style)]


def quoted(text: str) -> str:
    """A text as JSON writes it, in its own letters."""
    return json.dumps(text, ensure_ascii=False)


def visible(text: str) -> str:
    """A text that a terminal shows and does not act on; what is unsafe is written as JSON escapes it."""
    return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def plain(lines: Iterable[Line]) -> str:
    """The lines as text without colours, each ended."""
    return "".join("".join(visible(text) for text, _ in each).rstrip() + "\n" for each in lines)
