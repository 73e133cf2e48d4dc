"""An engine that replays the truth of a call with the faults of a transcript."""

import re
from dataclasses import replace
from typing import Any

import msgspec
from hypothesis import strategies as st

from filters.message import Message
from tests.memory.truth import Line, Request, calls

NOISE = [
    Message(role="user", content="<continue>"),
    Message(role="user", content=" "),
    Message(role="assistant", content="Still there?", metadata={"source": "silence"}),
    Message(role="assistant", content="Sorry, once more?", metadata={"source": "llm_failure"}),
    Message(role="developer", content="Be kind."),
]


def _unpunctuated(text: str) -> str:
    return re.sub(r"[.,!?]", "", text)


class Engine:
    """The truth of a call, and the windows in which it is replayed."""

    def __init__(self, draw: Any) -> None:
        self.draw = draw
        self.numbered = draw(st.booleans())
        self.marks = self.numbered and draw(st.booleans())
        self.speakers = draw(st.sampled_from([(None,), ("ann", "bob")]))
        self.gaps = self.numbered and not self.marks and draw(st.integers(0, 2)) == 0
        self.size = draw(st.sampled_from([None, None, None, 1, 4, 6, 9]))
        self.one_sided = not self.numbered and draw(st.integers(0, 3)) == 0
        self.repeats = self.numbered or (self.size is None and not self.one_sided)
        self.lines: list[Line] = []
        self.requests: list[Request] = []
        self.number = draw(st.integers(0, 1))
        self.time = 1_700_000_000
        self.life = 0
        self.asked = 0
        self.joined = False
        self.seen: set[int] = set()
        self.joins_late = draw(st.integers(0, 4)) == 0

    def chance(self, one_in: int) -> bool:
        return self.draw(st.integers(1, one_in)) == one_in

    def window(self, *, faults: bool = True) -> tuple[list[Message], list[bool], bool]:
        """The messages, which of them were cut short and do not say so, and whether all is in its place."""
        lines = [line for line in self.lines if line.life == self.life]
        start = 0 if self.size is None else max(0, len(lines) - self.size)
        lines = lines[start:]
        told = not any(x.calls or ((x.broken or x.foreign) and not x.told) for x in lines)
        silent = faults and self.one_sided and told and self.chance(3)
        shown: list[tuple[Message, bool]] = []
        faithful = not silent
        for line in lines:
            said = [] if silent and line.role == "assistant" else self.replayed(line)
            if said and line.role == "assistant" and line.spoken and faults and self.chance(6):
                said *= 2
                faithful = False
            if said and self.whole(line) and faults and self.chance(8):
                said = self.jumbled(said)
                faithful = False
            cut = line.hung_up or (line.cut and not self.marks)
            unmarked = cut and not line.foreign and bool(line.spoken)
            shown += [(message, unmarked) for message in said]
        if not silent:
            self.tell(lines, answers=any(m.role == "assistant" for m, _ in shown))
        if self.swaps(lines) and faithful and faults and self.chance(3):
            shown[-1], shown[-2] = shown[-2], shown[-1]
            faithful = False
        self.strew(shown)
        return [m for m, _ in shown], [cut for _, cut in shown], faithful

    def whole(self, line: Line) -> bool:
        return line.role == "assistant" and not (line.cut or line.foreign or line.calls) and bool(line.spoken)

    def swaps(self, lines: list[Line]) -> bool:
        """Whether the newest words cut the answer before them, which the engine may show behind them."""
        if len(lines) < 3 or lines[-1].role != "user" or lines[-3].role != "user":
            return False
        return lines[-2].cut and bool(lines[-2].heard) and not lines[-2].foreign

    def tell(self, lines: list[Line], *, answers: bool) -> None:
        newest = max((i for i, line in enumerate(lines) if line.role == "user"), default=len(lines))
        for i, line in enumerate(lines):
            if line.role == "assistant" and not line.told:
                spanned = i < newest and any(x.spoken or x.calls for x in lines[:i])
                if line.spoken or (spanned and (answers or line.broken or self.numbered)):
                    self.lines[self.lines.index(line)] = replace(line, told=True)

    def replayed(self, line: Line) -> list[Message]:
        fields: dict[str, Any] = {"turn_id": line.number, "timestamp": line.time} if self.numbered else {}
        if self.gaps and line.role != "user":
            del fields["turn_id"]
        if line.calls:
            return [Message(role="assistant", content=None, tool_calls=calls(line.calls), **fields)]
        if line.role == "tool":
            return [Message(role="tool", content=line.text, tool_call_id=line.call_id, **fields)]
        if line.role == "user":
            whose = {"metadata": {"user": line.speaker}} if line.speaker else {}
            return [Message(role="user", content=line.text, **whose, **fields)]
        if not line.spoken and self.chance(2):
            return []
        if self.numbered:
            fields["metadata"] = {"source": "command" if line.foreign else "llm"}
        if line.cut and self.marks and not line.foreign:
            fields["metadata"] |= {"interrupted": True, "original": line.text}
        return [Message(role="assistant", content=self.transcribed(line), **fields)]

    def transcribed(self, line: Line) -> str:
        """The words as a transcript spells them."""
        if line.foreign or not line.spoken:
            return line.spoken
        dots = self.draw(st.sampled_from(["", "", "...", "…"])) if line.cut else ""
        spelt = self.draw(st.sampled_from([str, str, str.lower, str.upper, _unpunctuated]))
        return spelt(line.spoken) + dots

    def jumbled(self, said: list[Message]) -> list[Message]:
        """The words of an answer that was heard to its end, in another order."""
        order = self.draw(st.permutations(said[0].text.split()))
        return [msgspec.structs.replace(message, content=" ".join(order)) for message in said]

    def strew(self, shown: list[tuple[Message, bool]]) -> None:
        """Puts what is no speech among the messages."""
        if self.chance(3):
            noise = self.draw(st.sampled_from(NOISE))
            shown.insert(self.draw(st.integers(0, len(shown))), (noise, False))
        if self.chance(2):
            shown.insert(0, (Message(role="system", content="Be brief."), False))
