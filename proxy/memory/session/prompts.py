"""What an engine says by itself: it marks it so in its windows, and not where it tells of a whole talk."""

from collections.abc import Sequence
from typing import Final

import msgspec

from filters.message import Message
from proxy.memory.session.session import Session
from proxy.memory.speech.speech import PROMPTS
from proxy.memory.speech.wording import imprint

_MOST: Final = 16
_LONGEST: Final = 1000


def prompted(session: Session, window: Sequence[Message]) -> Session:
    """The session that knows again what a window marks as no speech of the model's; the newest sixteen."""
    texts = (m.text for m in window if m.role == "assistant" and m.metadata and m.source in PROMPTS)
    shown = [*dict.fromkeys(texts)][-_MOST:]
    seen = dict.fromkeys(imprint(text) for text in shown if text.strip() and len(text) <= _LONGEST)
    new = [one for one in seen if one not in session.prompts]
    return msgspec.structs.replace(session, prompts=(*session.prompts, *new)[-_MOST:]) if new else session


def unprompted(session: Session, history: Sequence[Message]) -> list[Message]:
    """A history without what the engine said by itself, unless an answer that is held says the same."""
    known = set(session.prompts)
    if known:
        known.difference_update(imprint(e.generated) for e in session.entries if e.role == "assistant")
    return [m for m in history if not (known and m.role == "assistant" and imprint(m.text) in known)]
