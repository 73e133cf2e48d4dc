"""A call as the proxy sees it: windows come in, answers go out, and memory follows."""

import math

from filters.message import Message
from proxy.memory.align.strategies import align
from proxy.memory.merge.answer import Answer, apply_answer
from proxy.memory.merge.request import apply_request
from proxy.memory.session import NO_ATTEMPT, Arrival, Session
from proxy.memory.speech import speech_of
from proxy.memory.view import mark_interrupted, missing_messages

ROLES = {"u": "user", "a": "assistant", "s": "system", "t": "tool"}
NOW = 1_700_000_000.0


def message(line, **fields):
    """``u:text``, ``a:text``, ``s:text``; with a turn number ``3u:text``."""
    head, _, text = line.partition(":")
    number, role = head[:-1], head[-1]
    if number:
        fields["turn_id"] = int(number)
    return Message(role=ROLES[role], content=text, **fields)


def messages(*lines):
    return [message(line) if isinstance(line, str) else line for line in lines]


def calling(*ids):
    calls = [{"id": i, "type": "function", "function": {"name": "look", "arguments": "{}"}} for i in ids]
    return Message(role="assistant", content=None, tool_calls=calls)


def result(call_id, text="found"):
    return Message(role="tool", tool_call_id=call_id, content=text)


def reconcile(held, window, *, now):
    """Returns the session after a request that replays a window."""
    return apply_request(held, speech_of(window), now=now)[0]


def asked(held, window, *, now=math.inf):
    """The words that a window asks to be answered, once it is held."""
    return apply_request(held, speech_of(window), now=now)[1]


def marked(held, window, *, at=math.inf):
    """A window with answers marked that were not heard to the end."""
    return mark_interrupted(window, align(held, speech_of(window), Arrival(NO_ATTEMPT, at)))


def missing(held, window, *, at=math.inf):
    """Returns the stored entries that a window leaves out."""
    return missing_messages(align(held, speech_of(window), Arrival(NO_ATTEMPT, at)))


class Call:
    """What is held while a call goes on; each request is seen twice, which must change nothing."""

    def __init__(self, held=None):
        self.held = held or Session()
        self.now = self.ended = NOW

    def ask(self, *lines, answer=None, finished=True, hung_up=False, tool_calls=None, pause=9.0):
        """``pause`` is what lies between the end of the answer before and this request."""
        window = messages(*lines)
        self.now = self.ended + pause
        self.ended = self.now + 1
        self.held = reconcile(self.held, window, now=self.now)
        assert reconcile(self.held, window, now=self.now + 0.1) == self.held
        turn = asked(self.held, window, now=self.now)
        if answer is not None or tool_calls:
            self.held = apply_answer(
                self.held,
                Answer(
                    question=turn,
                    text=answer or "",
                    tool_calls=tool_calls,
                    finished=finished and not hung_up,
                    cancelled=hung_up,
                    ended_at=self.ended,
                ),
                now=self.now,
            )
            assert reconcile(self.held, window, now=self.now + 0.1) == self.held
        return turn

    @property
    def memory(self):
        """What is held, a line each: ``a:heard|generated`` where cut, ``a?:`` while pending.

        An answer is ``a/:`` where it was cut and all that was generated was heard.
        """
        return [shown(entry) for entry in self.held.entries]

    @property
    def turns(self):
        return [(entry.call, entry.turn) for entry in self.held.entries]


def shown(entry):
    if entry.tool_calls:
        return f"calls {' '.join(call['id'] for call in entry.tool_calls)}"
    if entry.role == "tool":
        return f"result {entry.tool_call_id}"
    text = entry.text if entry.original is None else f"{entry.text}|{entry.original}"
    is_marked = entry.interrupted and entry.original is None
    return f"{entry.role[0]}{'/' * is_marked}{'?' * entry.pending}:{text}"
