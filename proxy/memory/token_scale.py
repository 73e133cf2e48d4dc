"""How many tokens a model counts for each that we estimate, learned from what upstreams count."""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from filters.message import Message
from filters.tokens import in_message, in_text
from proxy.memory.session import Session

_MOST_MODELS: Final = 100
_LEAST_TOKENS: Final = 100
# Beyond these, the upstream counts something else.
_SMALLEST, _LARGEST = 0.4, 3.0
_WEIGHT: Final = 0.2
_TOLERANCE: Final = 0.1
_FIRST, _EVERY = 8, 8


class Scale(NamedTuple):
    """The ratio of a model, 0 while none is plausible, and the number of its turns so far."""

    ratio: float
    turns: int


class Scales:
    """The scales of the hundred models that were learned last."""

    def __init__(self) -> None:
        self._scales: OrderedDict[str, Scale] = OrderedDict()

    def wants_sample(self, model: str) -> bool:
        """Whether the next turn is worth an estimate: the first eight are, then every eighth."""
        scale = self._scales.get(model)
        return scale is None or scale.turns < _FIRST or scale.turns % _EVERY == 0

    def learn(self, model: str, estimated: int = 0, counted: int = 0) -> float | None:
        """The model's scale after a turn, which may tell nothing; ``None`` if nothing is known of it yet."""
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
    """The estimated tokens of a prompt; 0 if it has content other than text, which cannot be estimated."""
    tokens = in_text(tools.decode("utf-8", "replace"))
    for message in messages:
        if isinstance(message.content, list):
            return 0
        tokens += in_message(message)
    return tokens


def with_scale(session: Session, ratio: float | None) -> Session:
    """The session with a model's scale; it keeps its own while that is near, so that cuts stay in place."""
    own = session.scale
    if ratio is None or (own and abs(ratio - own) <= _TOLERANCE * own):
        return session
    return msgspec.structs.replace(session, scale=round(ratio, 2))
