"""Tokens counted by tiktoken, once its vocabulary is there: it is loaded off every call, or not at all."""

import asyncio
import logging
from collections.abc import Callable
from functools import lru_cache
from importlib import import_module
from typing import Any, Final

from filters.tokens import Count, in_text

_log = logging.getLogger("turnkeeper")
_VOCABULARY: Final = "o200k_base"
_REMEMBERED: Final = 20_000


class TokenCounter:
    """A count that is an estimate until the vocabulary is loaded, which may take a download and 80 MB.

    ``load`` gives something with an ``encode_ordinary``; whatever it raises, the estimate stays.
    """

    def __init__(self, load: Callable[[], Any] | None = None) -> None:
        self._load = load or _tiktoken
        self.count: Count = in_text

    async def ready(self) -> None:
        """Loads the vocabulary in a thread that holds up nothing."""
        try:
            encoding = await asyncio.to_thread(self._load)
        except Exception as error:  # noqa: BLE001 - a download may fail in any way
            _log.warning("Tokens are estimated: tiktoken cannot be used (%s)", type(error).__name__)
            return
        self.count = _counting(encoding)
        _log.info("Tokens are counted exactly, by %s", _VOCABULARY)


def _tiktoken() -> Any:
    return import_module("tiktoken").get_encoding(_VOCABULARY)


def _counting(encoding: Any) -> Count:
    """Each text is counted once: a conversation is the same from turn to turn, but for its end."""

    @lru_cache(maxsize=_REMEMBERED)
    def count(text: str) -> int:
        return len(encoding.encode_ordinary(text))

    return count
