"""Builds the session after a request from its entries and an aligned window."""

from collections.abc import Sequence
from itertools import pairwise

import msgspec

from filters.message import turn_id_of
from filters.tool_groups import call_id
from proxy.memory.align.alignment import NEW, Alignment
from proxy.memory.align.line import CUT, Line, similarity
from proxy.memory.merge.answer import question_before, question_ref
from proxy.memory.merge.entries import new_entry, renew_entry
from proxy.memory.session import Entry, LatestRequest, QuestionRef, Session, with_unheard
from proxy.memory.wording import continues_by_words


class SessionBuilder:
    """Interleaves a session's entries with the new lines of a window, and numbers their turns.

    ``indices`` has for each of the ``entries`` the index of the line that shows it, or ``None``.
    """

    def __init__(self, session: Session, alignment: Alignment, retracted: set[int], *, now: float) -> None:
        self.entries: list[Entry] = []
        self.indices: list[int | None] = []
        self._session, self._alignment, self._retracted, self._now = session, alignment, retracted, now
        self._call = session.call + alignment.new_call
        self._next_turn = 0 if alignment.new_call else session.next_turn
        self._unheard = () if alignment.new_call else session.unheard
        self._heard_late: list[Entry] = []
        self._older_is_cold = session.has_older and not alignment.new_call
        self._revised = alignment.revised
        self._end = 0
        self._calls: dict[str | None, int] = {}
        self._calls_end = 0

    def build(self, fingerprint: bytes) -> Session:
        """Returns the session with the window's new lines in their places, and without retracted entries.

        ``fingerprint`` is the request's.
        """
        alignment, session = self._alignment, self._session
        run = _leading_run(alignment, self._revised)
        if run:
            first = alignment.places[0]
            run_entries = alignment.entries[first : first + run]
            self._pass_to(first)
            self.entries += map(renew_entry, run_entries, map(alignment.whole_line, range(run)))
            self.indices += range(run)
            self._end = first + run
        order = _speaking_order(alignment, run)
        following, next_places = alignment.end, {}
        for index in reversed(order):
            next_places[index] = following
            following = alignment.places[index] if alignment.places[index] >= 0 else following
        for index in order:
            place = alignment.places[index]
            if place < 0:
                self._add_new(index, next_places[index])
                continue
            self._pass_to(place)
            entry = renew_entry(alignment.entries[place], alignment.whole_line(index))
            if place == self._revised and self._retracted >= set(range(place + 1, len(alignment.entries))):
                entry = msgspec.structs.replace(entry, turn=self._next_turn)
                self._next_turn += 1
            self.entries.append(entry)
            self.indices.append(index)
            self._end = place + 1
        self._pass_to(len(alignment.entries))
        self._join_continued_words()
        before = len(session.entries) - len(alignment.entries)
        entries = (*session.entries[:before], *self.entries)
        built = msgspec.structs.replace(
            session,
            entries=entries,
            call=self._call,
            next_turn=self._next_turn,
            latest_request=self._latest_request(entries, before, fingerprint),
            unheard=tuple(entry for entry in self._unheard if entry not in self._heard_late),
        )
        return with_unheard(built, [alignment.entries[place] for place in sorted(self._retracted)])

    def _latest_request(self, entries: Sequence[Entry], before: int, fingerprint: bytes) -> LatestRequest:
        alignment, session = self._alignment, self._session
        places = {index: before + i for i, index in enumerate(self.indices) if index is not None}
        first, last = min(places.values(), default=len(entries)), max(places.values(), default=-1)
        question: QuestionRef | None
        if alignment.question is not None:
            place = places.get(alignment.question)
            question = None if place is None else question_ref(entries, place)
        else:
            question = question_before(entries, last, self._call, self._next_turn)
        return LatestRequest(
            at=self._now,
            fingerprint=fingerprint,
            line_count=len(alignment.lines),
            start=session.cold_count + first,
            shows_answers=alignment.shows_answers,
            shows_call_start=first <= before,
            question=question,
        )

    def _pass_to(self, end: int) -> None:
        """Adds the entries before ``end`` that the window does not show, except retracted ones."""
        for place in range(self._end, end):
            if place not in self._retracted:
                self.entries.append(self._alignment.entries[place])
                self.indices.append(None)
        self._end = max(self._end, end)

    def _add_new(self, index: int, following: int) -> None:
        """Adds a new line; ``following`` is the place of the next recorded line."""
        if following > self._end:
            self._pass_to(following)
        is_last = following == len(self._alignment.entries)
        # Lines before the oldest entry are in the cold part, if there is one.
        if not following and not is_last and self._older_is_cold:
            return
        alignment = self._alignment
        message = alignment.whole_line(index) if alignment.split_answers else alignment.lines[index]
        if isinstance(message.tool_call_id, str):
            # A tool call with a result was executed, even if no window shows the call.
            for i in range(self._calls_end, len(self.entries)):
                self._calls |= dict.fromkeys(map(call_id, self.entries[i].tool_calls or ()), i)
            self._calls_end = len(self.entries)
            place = self._calls.get(message.tool_call_id)
            if place is not None and self.entries[place].pending:
                confirmed = msgspec.structs.replace(self.entries[place], pending=False, broken=False)
                self.entries[place] = confirmed
        late = None
        if self._unheard and message.role == "assistant":  # perhaps one that no window showed before
            line = Line(message)
            entry = next((entry for entry in self._unheard if similarity(line, Line(entry)) >= CUT), None)
            if entry is not None and entry not in self._heard_late:
                self._heard_late.append(entry)
                late = renew_entry(entry, message)
        turn_id = turn_id_of(message) if late is None else late.turn_id
        before = self.entries[-1] if self.entries else None
        if before is None:
            turn = self._next_turn if is_last else alignment.entries[0].turn
        else:
            same_turn = turn_id is not None and turn_id == before.turn_id
            turn = self._next_turn if is_last and message.role == "user" and not same_turn else before.turn
        self._next_turn = max(self._next_turn, turn + 1)
        if late is None:
            entry = new_entry(message, call=self._call, turn=turn, now=self._now)
        else:
            entry = msgspec.structs.replace(late, turn=turn)
        self.entries.append(entry)
        self.indices.append(index)

    def _join_continued_words(self) -> None:
        """Drops unanswered words with which newer words begin, and which count as part of the newer turn.

        Words that the window shows as a line of their own stay.
        """
        says_new = {NEW, self._revised}
        places = self._alignment.places
        joined = {
            i
            for i, (entry, after) in enumerate(pairwise(self.entries))
            if self.indices[i] is None
            and (index := self.indices[i + 1]) is not None
            and places[index] in says_new
            and entry.role == after.role == "user"
            and (not entry.user or after.user == entry.user)
            and continues_by_words(after.text, entry.text)
        }
        if joined:
            remaining = [i for i in range(len(self.entries)) if i not in joined]
            self.entries = [self.entries[i] for i in remaining]
            self.indices = [self.indices[i] for i in remaining]


def _leading_run(alignment: Alignment, revised: int | None) -> int:
    """Returns how many of the first lines are consecutive, unrevised entries; 0 if a later line is older."""
    places = alignment.places
    first = places[0] if places else NEW
    if first < 0:
        return 0
    breaks = (i for i, place in enumerate(places) if place != first + i or place == revised)
    count = next(breaks, len(places))
    return 0 if any(0 <= place < first + count for place in places[count:]) else count


def _speaking_order(alignment: Alignment, start: int) -> list[int]:
    """Returns the indices of the window's lines from ``start`` on, in the order of their entries.

    New words of the user that the window shows between a question and its answer come after the answer.
    """
    entries, places = alignment.entries, alignment.places
    if start == len(places):
        return []
    keys: dict[int, tuple[int, bool]] = {}
    ends = {entries[place].turn: place for place in sorted(alignment.matched)}
    before = places[start - 1] if start else -1
    for index in range(start, len(places)):
        place = places[index]
        if place >= 0:
            before = max(before, place)
        elif alignment.lines[index].role == "user" and before >= 0 and entries[before].role == "user":
            before = ends[entries[before].turn]
        keys[index] = (before, True) if place < 0 else (place, False)
    return sorted((index for index in keys if places[index] >= NEW), key=keys.__getitem__)
