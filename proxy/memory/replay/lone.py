"""Words of the user without any history: the newest that are held, once more, or new ones.

Where nothing but the words is sent, equal words are taken for the same request. What a client says of its
requests tells better, and so does the time: who asks again has had no answer.
"""

from collections.abc import Sequence

from filters.message import Message
from filters.role import newest_user
from proxy.memory.replay.line import NEW, Line, number_of
from proxy.memory.session.entry import Entry
from proxy.memory.session.newest import Newest, seals
from proxy.memory.session.retry import Asking
from proxy.memory.speech.speech import Speech

# Whoever takes a request back for another sends that within less than this; a caller who interrupts an
# answer has to speak first.
_AT_ONCE = 0.3


def is_lone(spoken: Sequence[Message]) -> bool:
    """Whether a window without turn numbers is nothing but words of the user."""
    return len(spoken) == 1 and spoken[0].role == "user" and number_of(spoken[0]) is None


def place(entries: Sequence[Entry], words: Message, asking: Asking, newest: Newest | None) -> int:
    """Where lone words are held."""
    if asking.attempt.request:
        own = (i for i, e in enumerate(entries) if e.recorded == asking.at and _equal(e, words))
        if (found := next(own, None)) is not None:
            return found
    last = newest_user(entries)
    if last is None or not (_equal(entries[last], words) or entries[last].replaces(words.text)):
        return NEW
    return NEW if newest and another(newest, asking) else last


def another(newest: Newest, asking: Asking) -> bool:
    """Whether a request with the newest one's lone words is another turn.

    Its name tells, where both bear one. OpenAI's clients tell that they send something for the first time:
    where the engine keeps no history, nobody says again what was answered to the end.
    """
    attempt, at = asking
    if attempt.again:
        return False
    if attempt.request and newest.request:
        return attempt.request != newest.request
    lone = newest.lines == 1 and not newest.whole
    return attempt.again is False and lone and newest.finished and newest.ended < at


def slides(newest: Newest, asking: Asking) -> bool:
    """Whether a request with the newest one's window is another turn, since that had slid to where it stood.

    A caller may be told the same, and say the same again, in a window of few lines.
    """
    named = asking.attempt.request and newest.request and asking.attempt.request != newest.request
    if not named or asking.attempt.again or newest.whole:
        return False
    return newest.lines > 1 and newest.finished and newest.ended < asking.at


def again(newest: Newest | None, said: Speech, asking: Asking) -> bool:
    """Whether a window is the newest one once more, as far as anybody can tell.

    An answer without words is no line: engines may show it, as unheard, or leave it out.
    """
    if newest is None:
        return True
    if newest.lines != len(said.lines) or slides(newest, asking):
        return False
    return newest.seal in seals(said, asking.attempt)


def follows(newest: Newest | None, at: float) -> bool:
    """Whether what arrived ``at`` a time came once the newest request had been answered, or given up."""
    if newest is None or not newest.ended:
        return False
    return at > newest.ended + (0 if newest.finished else _AT_ONCE)


def _equal(entry: Entry, words: Message) -> bool:
    return entry.role == "user" and Line(entry).key == Line(words).key
