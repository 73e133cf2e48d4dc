"""Entries that a window leaves out although it spans their place: unheard answers, retracted words."""

from filters.message import turn_id_of
from proxy.memory.align.alignment import Alignment, last_user


def retracted(alignment: Alignment) -> set[int]:
    """The places of entries that the window shows to be retracted, superseded or never heard.

    What stands before the window's start is not retracted: windows slide. What was heard once stays heard,
    unless the whole turn is taken back.
    """
    matched = set(alignment.matched)
    if not matched:
        last = alignment.superseded
        return set() if last is None else set(range(last, len(alignment.entries)))
    if matched.issuperset(range(min(matched), alignment.end)):
        return set()
    entries = alignment.entries
    absent = [place for place in range(alignment.end) if place not in matched]
    users: set[int] = set()
    # Calls alone take nothing back: without turn ids, another turn may have made the same. Engines may count
    # roles apart, so the user's words have a span of their own.
    has_turn_ids = any(turn_id_of(message) is not None for message in alignment.lines)
    if has_turn_ids or not all(entries[i].tool_calls or entries[i].role == "tool" for i in matched):
        first = min((i for i in matched if entries[i].role == "user"), default=max(matched))
        users = {i for i in absent if i > first and entries[i].role == "user"}
    return users | _unheard(alignment, absent, matched, users)


def _unheard(alignment: Alignment, absent: list[int], matched: set[int], users: set[int]) -> set[int]:
    entries, question, revised = alignment.entries, alignment.question, alignment.revised
    newest = alignment.places[question] if question is not None else -1
    passed = newest if newest >= 0 else alignment.end
    turns = {entries[i].turn for i in users} - {entries[i].turn for i in matched}
    unheard = set()
    for i in absent:
        entry = entries[i]
        if entry.role == "user":
            continue
        answers_early_words = revised is not None and entry.pending and i > revised
        taken_back = 0 <= newest < i and any(user > i for user in users)
        spanned = i > min(matched) and i < passed and (entry.broken or alignment.shows_answers)
        answers_retracted = entry.pending and last_user(entries, i) in users
        if (
            answers_early_words
            or taken_back
            or answers_retracted
            or entry.turn in turns
            or (entry.pending and spanned)
        ):
            unheard.add(i)
    return unheard
