"""Exact token counts by tiktoken, whose vocabulary is loaded in the background."""

import asyncio
import logging
from collections.abc import Callable
from functools import lru_cache
from importlib import import_module
from typing import Any, Final

from filters.tokens import Count, in_text

_log = logging.getLogger("turnkeeper")
_VOCABULARY: Final = "o200k_base"
_CACHED_TEXTS: Final = 20_000


class TokenCounter:
    """A count that is an estimate until the vocabulary is loaded, which may take a download and 80 MB.

    ``load_encoding`` returns an object with ``encode_ordinary``; whatever it raises, the estimate stays.
    """

    def __init__(self, load_encoding: Callable[[], Any] | None = None) -> None:
        self._load_encoding = load_encoding or (lambda: import_module("tiktoken").get_encoding(_VOCABULARY))
        self.count: Count = in_text

    async def load(self) -> None:
        """Load the vocabulary in a thread."""
        try:
            encoding = await asyncio.to_thread(self._load_encoding)
        except Exception as error:  # noqa: BLE001 - a download may fail in any way
            _log.warning("Tokens are estimated: tiktoken cannot be used (%s)", type(error).__name__)
            return

        @lru_cache(maxsize=_CACHED_TEXTS)  # a conversation is the same from turn to turn, but for its end
        def count(text: str) -> int:
            return len(encoding.encode_ordinary(text))

        self.count = count
        _log.info("Tokens are counted exactly, by %s", _VOCABULARY)
