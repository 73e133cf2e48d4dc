"""Answers that a window shows behind words which were said after them: each stands where it was given."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import msgspec

from filters.message import Message
from proxy.memory.replay.alignment import AGAIN
from proxy.memory.replay.line import NEW, number_of
from proxy.memory.replay.replay import Replay
from proxy.memory.speech.speech import is_speech

_NEAR: Final = 6


def righted(window: Sequence[Message], replay: Replay) -> tuple[Sequence[Message], Replay]:
    """The window with belated answers before the words that came after them, and its replay."""
    if _is_in_order(replay.places):
        return window, replay
    order, slots = _order(replay), [i for i, message in enumerate(window) if is_speech(message)]
    if len(order) != len(slots):  # nothing is belated, or not all of it lies beside what is held
        return window, replay
    shown = list(window)
    for slot, position in zip(slots, order, strict=True):
        shown[slot] = window[slots[position]]
    spoken, places = ([of[i] for i in order] for of in (replay.spoken, replay.places))
    return shown, msgspec.structs.replace(replay, spoken=spoken, places=places)


def _is_in_order(places: Sequence[int]) -> bool:
    """Whether nothing stands behind what was said after it; nearly always so, and asked in every turn."""
    for one, next_ in pairwise(places):  # noqa: SIM110 - a generator costs ten times as much
        if next_ >= 0 and (one == NEW or one > next_):
            return False
    return True


def _is_later(place: int, *, than: int) -> bool:
    """Whether what is held at a place, or is new, was said after what is held at another."""
    return than >= 0 and (place == NEW or place > than)


def _order(replay: Replay) -> list[int]:
    """The positions of a window's lines as they were said; none where they have numbers or are pieces."""
    spoken, places = replay.spoken, replay.places
    if replay.wholes or any(number_of(message) is not None for message in spoken):
        return []
    order, questions, place = list(range(len(spoken))), _questions(replay), NEW
    for i, message in enumerate(spoken):
        answers = message.role == "assistant" and not message.tool_calls
        place = NEW if not answers else place if places[i] == AGAIN else places[i]
        at, first = i, max(0, i - _NEAR)
        while at > first and _is_passed(replay, order[at - 1], place):
            at -= 1
        if at < i and questions[place] < order[at]:
            order.insert(at, order.pop(i))
    return order


def _is_passed(replay: Replay, position: int, place: int) -> bool:
    """Whether a line is the user's, and came after the answer that is held at a place."""
    return replay.spoken[position].role == "user" and _is_later(replay.places[position], than=place)


def _questions(replay: Replay) -> list[int]:
    """Where the window shows the words that each held line belongs to; behind all where it does not."""
    shown = {place: i for i, place in enumerate(replay.places) if place >= 0}
    found, last = [], len(replay.spoken)
    for place, entry in enumerate(replay.held):
        last = shown.get(place, len(replay.spoken)) if entry.role == "user" else last
        found.append(last)
    return found
