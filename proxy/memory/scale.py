"""How many tokens a model really reads for each that is estimated, told by what upstreams count."""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

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


class Scales:
    """What was learned of each model, the newest hundred of them."""

    def __init__(self) -> None:
        self._learned: OrderedDict[str, float] = OrderedDict()

    def learned(self, model: str, estimated: int, counted: int) -> float | None:
        """The model's scale once it has counted a prompt; ``None`` where nothing is known of it yet."""
        ratio = counted / estimated if estimated >= _SHORTEST else 0.0
        if _LEAST <= ratio <= _LARGEST:
            former = self._learned.pop(model, ratio)
            self._learned[model] = former + _WEIGHT * (ratio - former)
            if len(self._learned) > _MOST_MODELS:
                self._learned.popitem(last=False)
        return self._learned.get(model)


def estimated(messages: Sequence[Message], tools: bytes) -> int:
    """About how many tokens a prompt has; 0 where it holds what is no text, which nobody can tell."""
    if any(isinstance(message.content, list) for message in messages):
        return 0
    return sum(map(in_message, messages)) + in_text(tools.decode("utf-8", "replace"))


def scaled(session: Session, learned: float | None) -> Session:
    """The session with a model's scale; it keeps its own while that is near, so that cuts stand still."""
    own = session.scale
    if learned is None or (own and abs(learned - own) <= _APART * own):
        return session
    return msgspec.structs.replace(session, scale=round(learned, 2))
