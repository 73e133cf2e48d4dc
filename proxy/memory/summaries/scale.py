"""How many tokens a model really reads for each that is estimated, told by what upstreams count."""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from filters.message import Message
from filters.tokens import in_message, in_text
from proxy.memory.session import Session

_MOST_MODELS: Final = 100
_SHORTEST: Final = 100
# Beyond these somebody counts something else.
_LEAST, _LARGEST = 0.4, 3.0
_WEIGHT: Final = 0.2
_APART: Final = 0.1
_FIRST, _THEN = 8, 8


class Scale(NamedTuple):
    """What was learned of a model, and how many turns have told of it."""

    ratio: float
    turns: int


class Scales:
    """What was learned of each model, the newest hundred of them."""

    def __init__(self) -> None:
        self._learned: OrderedDict[str, Scale] = OrderedDict()

    def wants_sample(self, model: str) -> bool:
        """Whether a turn's figures are worth the trouble: those of the first few, then of every eighth."""
        known = self._learned.get(model)
        return known is None or known.turns < _FIRST or known.turns % _THEN == 0

    def skip(self, model: str) -> float | None:
        """The model's scale after a turn of which it was not told."""
        known = self._learned.get(model)
        if known is None:
            return None
        self._learned[model] = known._replace(turns=known.turns + 1)
        return known.ratio

    def learn(self, model: str, estimated: int, counted: int) -> float | None:
        """The model's scale once it has counted a prompt; ``None`` where nothing is known of it yet."""
        ratio = counted / estimated if estimated >= _SHORTEST else 0.0
        if not _LEAST <= ratio <= _LARGEST:
            return self.skip(model)
        former, turns = self._learned.pop(model, Scale(ratio, 0))
        scale = Scale(former + _WEIGHT * (ratio - former), turns + 1)
        self._learned[model] = scale
        if len(self._learned) > _MOST_MODELS:
            self._learned.popitem(last=False)
        return scale.ratio


def estimate_tokens(messages: Sequence[Message], tools: bytes) -> int:
    """About how many tokens a prompt has; 0 where it holds what is no text, which nobody can tell."""
    if any(isinstance(message.content, list) for message in messages):
        return 0
    return sum(map(in_message, messages)) + in_text(tools.decode("utf-8", "replace"))


def with_scale(session: Session, learned: float | None) -> Session:
    """The session with a model's scale; it keeps its own while that is near, so that cuts stand still."""
    own = session.scale
    if learned is None or (own and abs(learned - own) <= _APART * own):
        return session
    return msgspec.structs.replace(session, scale=round(learned, 2))
