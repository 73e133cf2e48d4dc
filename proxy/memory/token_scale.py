"""Counts tokens exactly, with tiktoken, or learns the ratio of upstreams' counts to estimates."""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import lru_cache
from importlib import import_module
from typing import Any, Final, NamedTuple

import msgspec

from filters.message import Message
from filters.tokens import CountTokens, in_message, in_text
from proxy.memory.session import Session

_log = logging.getLogger("turnkeeper")
_VOCABULARY: Final = "o200k_base"
_CACHED_TEXTS: Final = 20_000
_MOST_MODELS: Final = 100
_LEAST_TOKENS: Final = 100
# Outside of this range, the upstream counts something else.
_SMALLEST, _LARGEST = 0.4, 3.0
_WEIGHT: Final = 0.2
_TOLERANCE: Final = 0.1
_FIRST, _EVERY = 8, 8


class Scale(NamedTuple):
    """The ratio of a model, 0 until one is plausible, and the number of its turns so far."""

    ratio: float
    turns: int


class Scales:
    """The scales of the last hundred models."""

    def __init__(self) -> None:
        self._scales: OrderedDict[str, Scale] = OrderedDict()

    def wants_sample(self, model: str) -> bool:
        """Whether to estimate the next turn: the first eight, then every eighth."""
        scale = self._scales.get(model)
        return scale is None or scale.turns < _FIRST or scale.turns % _EVERY == 0

    def learn(self, model: str, estimated: int = 0, counted: int = 0) -> float | None:
        """Updates and returns a model's scale after a turn; ``None`` while it is unknown."""
        ratio = counted / estimated if estimated >= _LEAST_TOKENS else 0.0
        if model not in self._scales and not ratio:
            return None
        former, turns = self._scales.pop(model, Scale(0.0, 0))
        if _SMALLEST <= ratio <= _LARGEST:
            former += _WEIGHT * (ratio - former) if former else ratio
        self._scales[model] = Scale(former, turns + 1)
        if len(self._scales) > _MOST_MODELS:
            self._scales.popitem(last=False)
        return former or None


def estimate_tokens(messages: Sequence[Message], tools: bytes) -> int:
    """Estimates the tokens of a prompt; 0 if it has content other than text."""
    tokens = in_text(tools.decode("utf-8", "replace"))
    for message in messages:
        if isinstance(message.content, list):
            return 0
        tokens += in_message(message)
    return tokens


def with_scale(session: Session, ratio: float | None) -> Session:
    """Returns the session with a model's scale; a similar one is kept, so that cuts stay in place."""
    scale = session.scale
    if ratio is None or (scale and abs(ratio - scale) <= _TOLERANCE * scale):
        return session
    return msgspec.structs.replace(session, scale=round(ratio, 2))


class TokenCounter:
    """Estimates tokens until the vocabulary is loaded, which may take a download and 80 MB.

    ``load_encoding`` returns an object with ``encode_ordinary``; if it raises, the estimate stays.
    """

    def __init__(self, load_encoding: Callable[[], Any] | None = None) -> None:
        self._load_encoding = load_encoding or (lambda: import_module("tiktoken").get_encoding(_VOCABULARY))
        self.count: CountTokens = in_text

    async def load(self) -> None:
        """Loads the vocabulary in a thread."""
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
