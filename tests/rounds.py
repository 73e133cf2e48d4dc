"""Rounds of a model, and what a client sees of them."""

import json

from proxy.tools.memory_tools import TOOLS, Offer
from proxy.tools.rounds import Dialogue, Rounds, Tools
from tests.peers.fake_upstream import DONE, ROLE, delta, event

OWN = frozenset(TOOLS)
SSE = [(b"content-type", b"text/event-stream")]
JSON = [(b"content-type", b"application/json")]
DUE = 5.0


def usage(prompt, completion):
    counts = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    return event(choices=[], usage={**counts, "prompt_tokens_details": {"cached_tokens": prompt - 1}})


def calling(*names, words="", arguments='{"query": "name"}'):
    """A round in which tools are called, in pieces, as OpenAI streams them."""
    events = [ROLE, *([delta(content=words)] if words else [])]
    for index, name in enumerate(names):
        function = {"name": name, "arguments": ""}
        events.append(
            delta(
                tool_calls=[{"index": index, "id": f"call_{index}", "type": "function", "function": function}]
            )
        )
        events += [
            delta(tool_calls=[{"index": index, "function": {"arguments": piece}}])
            for piece in (arguments[:5], arguments[5:])
        ]
    return b"".join([*events, delta(finish="tool_calls"), usage(10, 3), DONE])


class Answer:
    def __init__(self, body, headers=SSE, status=200, size=10_000):
        self.status, self.headers, self.closed = status, headers, False
        self._parts = [body[i : i + size] for i in range(0, len(body), size)]

    async def read(self):
        return self._parts.pop(0) if self._parts else b""

    def due(self, at):
        pass

    def close(self):
        self.closed = True


class Kit:
    def __init__(self):
        self.done = []

    async def run(self, name, arguments, until):
        self.done.append((name, arguments))
        return '{"found": []}'


async def shown(*bodies, most=4, headers=SSE, size=10_000, watch=lambda seen, kit: None):
    """Returns the client's stream, the tool calls that were run, and the model's further requests."""
    answers = [Answer(body, headers, size=size) for body in bodies]
    asked = []

    async def again(due):
        asked.append((list(dialogue.messages), dialogue.is_last_round))
        return answers[len(asked)]

    kit = Kit()
    dialogue = Dialogue(Tools(Offer({}, OWN, {}, {}), kit, most))
    rounds = Rounds(answers[0], again, dialogue, 0, DUE)
    seen = b""
    while data := await rounds.read():
        seen += data
        watch(seen, kit)
    rounds.close()
    assert all(answer.closed for answer in answers[: len(asked) + 1])
    return seen, kit.done, asked


def chunks(seen):
    lines = [line[6:] for line in seen.split(b"\n\n") if line.startswith(b"data: {")]
    return [json.loads(line) for line in lines]
