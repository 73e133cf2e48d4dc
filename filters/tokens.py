"""Estimates tokens by script, with an error of about 2 % in English and 15 % in other languages.

The coefficients fit the o200k vocabulary on samples of eleven languages.
"""

import re
from collections.abc import Callable
from math import ceil
from typing import Any

from filters.message import Message, is_text
from filters.tool_groups import function_of

# Hangul, radicals to ideographs (kana and bopomofo among them), compatibility and fullwidth forms.
_WIDE = re.compile(
    "[\u1100-\u11ff\u2e80-\u9fff\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\ufe30-\ufe4f\uff00-\uffef"
    "\U00020000-\U0003ffff]"
)
_PIECE = 100_000
_MESSAGE, _CALL = 4, 8
# A picture of 1024 by 1024; a request does not tell the size.
_PART = 765


def in_text(text: str) -> int:
    """Returns the estimated number of tokens of a text."""
    if text.isascii():
        return -(-len(text) * 5 // 23)
    if len(text) > _PIECE:  # counting all of it at once would block other threads
        return sum(in_text(text[start : start + _PIECE]) for start in range(0, len(text), _PIECE))
    plain = len(text.encode("ascii", "ignore"))
    wide = len(_WIDE.findall(text))
    return ceil(plain / 4.4 + 0.68 * wide + 0.28 * (len(text) - plain - wide))


CountTokens = Callable[[str], int]
"""Counts the tokens of a text."""


def in_message(message: Message, count: CountTokens = in_text) -> int:
    """Returns the tokens of a message, and those that a model adds around it; 765 for a part without text."""
    content = message.content
    tokens = _MESSAGE + (count(content) if isinstance(content, str) else 0)
    if isinstance(content, list):
        tokens += sum(count(part["text"]) if is_text(part) else _PART for part in content)
    if message.others and (function := function_of(message)):
        tokens += _in_call({"function": function}, count)
    return (
        tokens + sum(_in_call(call, count) for call in message.tool_calls) if message.tool_calls else tokens
    )


def _in_call(call: dict[str, Any], count: CountTokens) -> int:
    function = call.get("function")
    values = function.values() if isinstance(function, dict) else ()
    return _CALL + sum(count(value) for value in values if isinstance(value, str))
