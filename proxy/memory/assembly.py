"""The recent talk as text, for whoever is told of it in a prompt."""

from filters.line import one_line
from proxy.memory.session import Session, message_of

_LONGEST = 1_000_000


def lines(session: Session) -> list[str]:
    """The recent talk, a line each: ``user: Hello``.

    Tool results are no talk, nor is what a program put in the user's place.
    """
    said = (message_of(entry) for entry in session.entries if not entry.put_in)
    return [f"{m.role}: {one_line(m.text, _LONGEST)}" for m in said if m.role != "tool" and m.text.strip()]
