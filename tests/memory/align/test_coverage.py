"""Each turn reaches the model once, verbatim or in a summary, and a prompt only grows at its end."""

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from filters.base import Context
from filters.message import Message
from filters.tool_groups import groups
from proxy.memory.compaction import SessionLimits, fit, insert_segment, make_segment, next_plan, settle
from proxy.memory.merge.answer import Answer, apply_answer
from proxy.memory.session import Session, decode, encode
from proxy.memory.view import RequestView, prompt_view
from proxy.settings.load import load
from proxy.turn import chain
from tests.memory.call import asked, reconcile

CHAIN = load(Path(__file__).parents[3] / "config" / "agora.yaml", {}).pipelines["default"].request
MARK = re.compile(r"\b(?:user|answer|call|result)\d+(?:_\d)?\b")
SYSTEM = Message(role="system", content="Be brief.")


@dataclass(frozen=True)
class Turn:
    """A turn of the true call: parallel tool calls, and an answer that is cut after some words."""

    calls: int = 0
    cut: int | None = None


turns = st.builds(Turn, st.sampled_from([0, 0, 0, 1, 3]), st.sampled_from([None, None, 2, 4]))


class Talk:
    """A call as engine, memory and model see it."""

    def __init__(self, *, numbered: bool, size: int, window: SessionLimits) -> None:
        self.numbered, self.size, self.window = numbered, size, window
        self.session, self.cold = Session(), []
        self.lines: list[Message] = []
        self.prompts: list[tuple[int, list[Any]]] = []
        self.compactions = 0

    def request(self, answer: str = "", calls: Any = None) -> list[Message]:
        """One request, and the answer that the model gives; what the model was shown."""
        shown = [SYSTEM, *self.replayed()]
        snapshot, heard, _ = prompt_view(RequestView(shown).view_of(self.session))
        prompt = list(chain.run(CHAIN, heard, Context(now=0.0, memory=snapshot), chain.FilterLog()))
        self.prompts.append((self.compactions, [_sent(m) for m in prompt]))
        after = reconcile(self.session, heard, now=1.0)
        said = Answer(question=asked(after, heard), text=answer, tool_calls=calls)
        after = apply_answer(after, said, now=1.0)
        kept, moved = fit(self.session, after, self.window, now=1.0)
        self.compactions += kept.summaries != self.session.summaries
        self.session = decode(encode(kept))
        self.cold += moved
        return prompt

    def replayed(self) -> list[Message]:
        """The newest messages; engines do not part a call from its results in the newest turn."""
        start = max(0, len(self.lines) - self.size)
        newest = max(i for i, m in enumerate(self.lines) if m.role == "user")
        return self.lines[min(start, newest) :]

    def turn(self, n: int, turn: Turn) -> None:
        self.say("user", n, f"user{n} asks for the {n}th time")
        if turn.calls:
            calls = [_call(f"call{n}_{i}") for i in range(turn.calls)]
            self.check(self.request(calls=calls), n)
            self.say("assistant", n, None, tool_calls=calls)
            for i in range(turn.calls):
                self.say("tool", n, f"result{n}_{i} is found", tool_call_id=f"call{n}_{i}")
        text = f"answer{n} is that this costs {n} in all"
        self.check(self.request(text), n)
        heard = text if turn.cut is None else " ".join(text.split()[: turn.cut])
        self.say("assistant", n, heard)

    def say(self, role: str, n: int, text: str | None, **fields: Any) -> None:
        told = {"turn_id": n, "timestamp": 1000 + n} if self.numbered else {}
        self.lines.append(Message(role=role, content=text, **told, **fields))

    def check(self, prompt: list[Message], n: int) -> None:
        """Each message of the talk once, no call without its results, the newest words at the end."""
        found = Counter(MARK.findall("\n".join(map(_text, prompt))))
        expected = Counter(MARK.findall("\n".join(map(_text, self.lines))))
        assert found == expected, (found - expected, expected - found)
        assert not any(group.open for group in groups(prompt))
        results = {m.tool_call_id for m in prompt if m.role == "tool"}
        assert results == {c["id"] for m in prompt for c in m.tool_calls or ()}
        assert any(m.role == "user" and m.text.startswith(f"user{n} ") for m in prompt[-5:])

    def compact(self) -> None:
        """What the worker does, with notes that tell every mark."""
        while (plan := next_plan(self.session, self.window)) is not None:
            told = [e for e in (*self.cold, *self.session.entries) if plan.covers(e)]
            former = [s.text for s in self.session.summaries[plan.first : plan.last]] if plan.merge else []
            marks = MARK.findall("\n".join([*former, *(_text(e) for e in told if not plan.merge)]))
            made = make_segment(self.session, plan, told, " ".join(marks) + ".", now=1.0)
            self.session, moved = settle(insert_segment(self.session, plan, made), self.window.keep_messages)
            self.cold += moved
            self.compactions += 1


def _call(name: str) -> dict[str, Any]:
    return {"id": name, "type": "function", "function": {"name": "look", "arguments": f'"{name}"'}}


def _text(said: Any) -> str:
    calls = " ".join(call["function"]["arguments"] for call in said.tool_calls or ())
    unheard = re.sub(r"\[interrupted.*?\]", "", said.text)
    return f"{unheard} {calls}"


def _sent(message: Message) -> Any:
    return (message.role, message.content, message.tool_calls, message.tool_call_id)


@given(
    talk=st.lists(turns, min_size=1, max_size=22),
    numbered=st.booleans(),
    size=st.one_of(st.integers(1, 14), st.just(100)),
    late=st.sampled_from([1, 1, 2, 3]),
    keep=st.integers(1, 6),
)
def test_every_turn_reaches_the_model_once_and_the_prompt_only_grows(
    talk: list[Turn], numbered: bool, size: int, late: int, keep: int
) -> None:
    # The recorder's own digests tell only a part; here the notes tell all, so twice the most is never passed.
    most = 40 if late > 1 else 12
    window = SessionLimits(max_messages=most, keep_messages=keep, summaries=3)
    call = Talk(numbered=numbered, size=size, window=window)
    for n, turn in enumerate(talk):
        call.turn(n, turn)
        if n % late == 0:
            call.compact()
    for (before, earlier), (after, later) in zip(call.prompts, call.prompts[1:], strict=False):
        assert before != after or later[: len(earlier)] == earlier
