"""Calls whose truth is known, and the faulty requests in which an engine replays them.

Each request comes with what memory must hold once it was seen and answered. The truth of a fault:

- a window that slides, inside a turn or a tool group too: what stands before it is still held;
- an answer cut at a word, with other case and punctuation, with dots, doubled, or swapped with the words that
  cut it: it is held as heard, beside what was generated. Told by a window that shows it;
- an answer of which nothing was heard, left out or replayed without words: it is not held. Told by a window
  that shows its question, and that shows any answer at all or numbers its turns, or else the answer's stream
  broke off;
- without turn numbers, a window without the assistant's side: tells nothing, and all is held as before;
- a failed turn: its question stands alone, or is glued to the next one and counts once;
- an answer whose client hung up: marked, though all that was relayed may have been heard;
- an early or another form of words, and words withdrawn: neither they nor their answers are held. Where no
  window shows any history, an early form comes before its answer can have been spoken;
- an engine that counts anew: a new life, and nothing of the former is changed;
- a call that is joined late: held as the first window shows it.

Kept out, since nobody could tell the truth from what is replayed:

- without turn numbers, equal answers, and equal words in windows that slide or show one side alone:
  a window of ``yes``, ``okay``, ``yes`` stands for any of several places;
- words that begin with unanswered words before them without being glued to them: ``yes``, ``yes please``;
- a failed turn glued behind an equal one that failed: ``yes``, ``yes yes`` may be two turns or three;
- without the assistant's side, an answer that broke off: it was not heard, or is only not shown;
- an early form that arrives late behind equal words without an answer: it may follow the one or the other;
- an answer cut so short that it may be the beginning of its neighbour;
- early words where the window shows no history: the engine may just keep none;
- a new life whose first words are the former's, or without turn numbers;
- calls of one turn that bear the same ids;
- without turn numbers, words withdrawn where a window shows nothing but calls before them: another turn may
  have made the same;
- an order that is swapped in the first window that anybody sees.
"""

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from filters.letters import bare
from tests.memory.replaying_engine import Engine
from tests.memory.truth import Line, Request, calls

TOOK, PAUSE, HASTE = 1.0, 60.0, 0.2
"""Seconds: that an answer takes to stream, to be spoken for sure, and that suffice for none."""
SHORT = ["Yes", "No.", "Okay then", "Hm"]
OPENING = ["could", "what", "please", "tomorrow", "where", "how", "maybe", "first", "again", "never"]
WORDS = ["the", "red", "house,", "stands", "by", "a", "lake.", "and", "you", "can", "see", "it", "now!"]


def _answered(line: Line | None, *, reached: bool) -> dict[str, Any] | None:
    """What the proxy knows of an answer: without content where nothing of it ``reached`` the client."""
    if line is None:
        return None
    return {
        "text": line.text if reached else "",
        "tool_calls": calls(line.calls) if line.calls and reached else None,
        "finished": not line.broken,
        "cancelled": line.broken and line.hung_up,
    }


class Talk(Engine):
    """A call as it goes on, with all that goes wrong."""

    speaker: str | None = None
    clock: float = 0.0
    pause: float = PAUSE

    # --- what is said

    def line(self, role: str, text: str, **fields: Any) -> Line:
        self.time += self.draw(st.integers(1, 9))
        told = {"number": self.number, "time": self.time} if self.numbered else {}
        return Line(role, text, life=self.life, **told, **fields)

    def user(self, text: str) -> Line:
        return self.line("user", text, speaker=self.speaker)

    def words(self) -> str:
        self.asked += 1
        if self.repeats and self.chance(2):
            return self.draw(st.sampled_from(SHORT))
        rest = self.draw(st.lists(st.sampled_from(WORDS), min_size=1, max_size=4))
        return " ".join([f"{OPENING[self.asked % len(OPENING)]}{self.asked}", *rest])

    def answer_text(self) -> str:
        rest = self.draw(st.lists(st.sampled_from(WORDS), max_size=7))
        return " ".join([f"Answer{self.asked:03}", *rest])

    def answer(self) -> Line:
        text = self.answer_text()
        count = len(text.split())
        at_word = " ".join(text.split()[: self.draw(st.integers(0, count))])
        in_word = text[: self.draw(st.integers(len(text.split()[0]), len(text)))].rstrip()
        heard = self.draw(st.sampled_from([None, None, "", at_word, in_word]))
        broken = heard is not None and self.chance(2)
        return self.line("assistant", text, heard=heard, broken=broken, hung_up=broken and self.chance(2))

    # --- a request

    def request(self, answer: Line | None = None, *, faults: bool = True, reached: bool = True) -> None:
        if not self.joined:
            if self.joins_late and self.asked < 3:
                self.lines += [replace(answer, told=True, foreign=True)] if answer and reached else []
                return
            self.join()
        if self.life not in self.seen:
            self.seen.add(self.life)
            former = [x for x in self.lines if x.life < self.life]
            self.lines = [*former, *self.lines[len(former) :][-(self.size or 0) :]]
            faults = False
        window, cut, faithful = self.window(faults=faults)
        known = [x for x in self.lines if x.life == self.life]
        talk = [(x.role, self.remembered(x)) for x in known if x.role in {"user", "assistant"}]
        heard = [(role, bare(text)) for role, text in talk if text]
        if answer is not None and reached:
            self.lines.append(answer)
        self.requests.append(
            Request(
                window, _answered(answer, reached=reached), self.gold(), cut, faithful, heard, self.arrival()
            )
        )

    def arrival(self) -> float:
        """When the next request comes: unless it is hasty, all that was answered before has been spoken."""
        self.clock, self.pause = self.clock + TOOK + self.pause, PAUSE
        return self.clock

    def join(self) -> None:
        """Memory begins to record in mid-call: earlier words are known only from the first window."""
        self.joined = True

    def remembered(self, line: Line) -> str:
        """The entry for a line in window and memory; without a window it is stored as generated."""
        untold = not line.told and (self.size == 1 or bool(line.spoken))
        return line.text if untold else line.spoken

    def gold(self) -> list[tuple[Any, ...]]:
        return [x.in_memory for x in self.lines if not (x.unheard or (x.foreign and not x.told))]

    def take_back(self, *lines: Line) -> None:
        self.lines = [line for line in self.lines if not any(line is x for x in lines)]

    def turn(self) -> None:
        """One turn of the caller's, with all that goes wrong on the way to it."""
        self.speaker = self.draw(st.sampled_from(self.speakers))
        if self.numbered and self.joined and self.size != 1 and self.chance(5):
            self.lines.append(self.user(self.words()))
        text = self.words()
        if self.joined:
            for count in sorted(self.draw(st.sets(st.integers(1, 3), max_size=2))):
                self.superseded(text, " ".join(text.split()[:count]))
        user = self.user(text)
        self.lines.append(user)
        kinds = ["plain", "plain", "plain", "failed", "again", "late"]
        kind = self.draw(st.sampled_from(kinds if self.size == 1 else [*kinds, "tools", "abandoned"]))
        getattr(self, kind)(user)
        if self.joined and self.size != 1 and self.chance(5):
            self.lines.append(self.line("assistant", f"By the way {self.asked}", foreign=True))
        self.number += 1

    def superseded(self, text: str, early: str) -> None:
        """Words that were taken for the caller's for a moment: an early form, others, or none at all."""
        other = f"Gone{len(self.requests)} for good"
        begun = sum(x.life == self.life for x in self.lines)
        words = self.draw(st.sampled_from([early, other])) if begun and self.size != 1 else early
        if words == text or not self.shows_talk():
            return
        user = self.user(words)
        self.lines.append(user)
        answer = self.draw(st.sampled_from([None, self.answer()]))
        self.request(answer)
        self.pause = HASTE
        self.take_back(user, *self.lines[-1:] if self.lines[-1] is answer else [])
        if self.numbered and begun > 2 and self.chance(2):
            self.number += 1

    def shows_talk(self) -> bool:
        """Whether a window that ends with the next words shows, before them, more than calls."""
        before = [line for line in self.lines if line.life == self.life][-(self.size or 0) :][1:]
        sides = {"user"} if self.one_sided else {"user", "assistant"}
        talk = any(line.role in sides and line.spoken for line in before)
        return self.numbered or self.size in {None, 1} or talk

    def plain(self, user: Line) -> None:
        self.request(self.answer())

    def failed(self, user: Line) -> None:
        answer = self.answer()
        self.request(answer, reached=False)
        before = [line for line in self.lines[:-1] if line.spoken or line.calls][-1:]
        if self.chance(2) and not any(bare(user.text).startswith(bare(x.text)) for x in before):
            self.take_back(user)
            self.number += 1
            glued = self.user(f"{user.text} {self.words()}")
            self.lines.append(glued)
            self.request(self.answer())

    def again(self, user: Line) -> None:
        answer = self.answer()
        self.request(answer)
        if self.joined and self.lines[-1] is answer:
            self.lines.pop()
            self.request(self.draw(st.sampled_from([answer, self.answer()])))

    def tools(self, user: Line) -> None:
        for turn in "ab"[: self.draw(st.integers(1, 2))]:
            ids = tuple(f"call_{turn}{i}" for i in range(self.draw(st.integers(1, 3))))
            call = self.line("assistant", "", calls=ids, told=True)
            self.request(call)
            if self.lines[-1].calls != call.calls:
                self.lines.append(call)
            for i in self.draw(st.permutations(ids)):
                self.lines.append(self.line("tool", f"result of {i}", call_id=i))
        self.request(self.answer())

    def abandoned(self, user: Line) -> None:
        """A call of a tool that no result comes back for."""
        self.request(self.line("assistant", "", calls=("call_0",), told=True))

    def late(self, user: Line) -> None:
        """An early form of the words arrives late."""
        answer = self.answer()
        self.request(answer)
        if not self.joined or self.lines[-1] is not answer or len(user.text.split()) < 2:
            return
        self.lines.pop()
        before = [line for line in self.lines[:-1] if line.spoken or line.calls][-1:]
        if any(line.text == user.text for line in before):
            self.lines.append(answer)
            return
        truth = [*self.lines, answer]
        self.lines[-1] = replace(user, text=user.text.split()[0])
        window, cut, exact = self.window(faults=False)
        self.lines = truth
        self.pause = -HASTE
        self.requests.append(Request(window, None, self.gold(), cut, exact, None, self.arrival()))

    def anew(self) -> None:
        """The channel returns, and the engine counts from the start."""
        self.life += 1
        self.number = self.draw(st.integers(0, 1))
        self.time += 1000
        self.greet()

    def greet(self) -> None:
        if self.chance(2):
            self.lines.append(self.line("assistant", "Hello there!", told=True, foreign=True))
            self.number += 1


@st.composite
def talks(draw: Any, max_turns: int = 6) -> list[Request]:
    """A call's requests in order, with the truth of each."""
    engine = Talk(draw)
    engine.greet()
    lives = draw(st.sampled_from([1, 1, 2])) if engine.numbered else 1
    for life in range(lives):
        if life:
            engine.anew()
        for _ in range(draw(st.integers(4 if lives > 1 and not life else 1, max_turns))):
            engine.turn()
    return engine.requests
