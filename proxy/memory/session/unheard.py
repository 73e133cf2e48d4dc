"""Answers that no window showed, kept aside: one that comes late may show them yet."""

from collections.abc import Iterable

import msgspec

from proxy.memory.session.entry import Entry
from proxy.memory.session.session import Session

_ASIDE = 4


def remembering(held: Session, unheard: Iterable[Entry]) -> Session:
    """The session with answers that were not heard kept aside; four of them, the newest."""
    known = {entry.generated for entry in held.unheard}
    answers = [e for e in unheard if e.role == "assistant" and e.text.strip() and e.generated not in known]
    return msgspec.structs.replace(held, unheard=(*held.unheard, *answers)[-_ASIDE:]) if answers else held
