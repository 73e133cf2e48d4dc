"""Held entries that a window leaves out although it spans their place: unheard answers, withdrawn words."""

from proxy.memory.align.alignment import Alignment, last_user
from proxy.memory.align.line import turn_id_of
from proxy.memory.session import Entry
from proxy.memory.wording import continues, continues_by_words


def retracted(replay: Alignment) -> set[int]:
    """The positions in ``held`` of what the window shows to be withdrawn, superseded or never heard.

    What stands before the window's start is not gone: windows slide. What was heard once stays heard, unless
    the whole turn is taken back.
    """
    matched = set(replay.matched)
    if not matched:
        return _superseded(replay)
    if matched.issuperset(range(min(matched), replay.end)):
        return set()
    absent = [h for h in range(replay.end) if h not in matched]
    users = _withdrawn(replay, absent, matched)
    return users | _unheard(replay, absent, matched, users)


def _withdrawn(replay: Alignment, absent: list[int], matched: set[int]) -> set[int]:
    """The user's words inside the window's span; engines may count roles apart, so each role has its own.

    Calls alone take nothing back: without turn numbers, another turn may have made the same.
    """
    numbered = any(turn_id_of(message) is not None for message in replay.lines)
    if not numbered and all(_calls(replay.entries[h]) for h in matched):
        return set()
    first = min((h for h in matched if replay.entries[h].role == "user"), default=max(matched))
    return {h for h in absent if h > first and replay.entries[h].role == "user"}


def _calls(entry: Entry) -> bool:
    return bool(entry.tool_calls) or entry.role == "tool"


def _unheard(replay: Alignment, absent: list[int], matched: set[int], users: set[int]) -> set[int]:
    asked = replay.question
    newest = replay.places[asked] if asked is not None else -1
    passed = newest if newest >= 0 else replay.end
    turns = {_turn(replay, h) for h in users} - {_turn(replay, h) for h in matched}
    lost = set()
    for h in absent:
        entry = replay.entries[h]
        if entry.role == "user":
            continue
        unsaid = replay.revised is not None and entry.pending and h > replay.revised
        taken_back = 0 <= newest < h and any(user > h for user in users)
        shown = h > min(matched) and h < passed and (entry.broken or replay.shows_answers)
        reply = entry.pending and last_user(replay.entries, h) in users
        if unsaid or taken_back or reply or _turn(replay, h) in turns or (entry.pending and shown):
            lost.add(h)
    return lost


def _turn(replay: Alignment, position: int) -> int:
    return replay.entries[position].turn


def _superseded(replay: Alignment) -> set[int]:
    """The last turn, where the window shows nothing that is held but goes on from that turn's words.

    An answer that was finished may have been heard, and the engine keep no history; only a first turn was
    surely not answered aloud, because a window that has not slid would show it. Once an answer had ended,
    even that is not sure; and words are only guessed at while they are being said: nobody goes on in the
    middle of one later.
    """
    asked, last = replay.question, last_user(replay.entries)
    if asked is None or last is None:
        return set()
    answers = replay.entries[last + 1 :]
    unheard = all(entry.pending and entry.broken for entry in answers)
    first = last_user(replay.entries[:last]) is None and all(entry.pending for entry in answers)
    words, earlier = replay.lines[asked].text, replay.entries[last].text
    if replay.follows:
        superseded = unheard and continues_by_words(words, earlier)
    else:
        superseded = (unheard or first) and continues(words, earlier)
    if superseded:
        return set(range(last, len(replay.entries)))
    return set()
