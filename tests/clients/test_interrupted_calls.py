"""Whole calls of the voice frameworks: interruptions reach memory and the model."""

import json
import os
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.peers.fake_upstream import (
    DONE,
    HANG,
    HEAD,
    ROLE,
    FakeUpstream,
    Received,
    Step,
    answer,
    by_default,
    chunk,
    completion,
    delta,
    sse,
    stream_of,
)
from tests.proxy_server import ProxyServer, Serve
from tests.remembering import settle

CLIENTS = Path(__file__).parent
CONFIG = CLIENTS.parents[1] / "config"
Line = dict[str, Any]
Answers = dict[str, tuple[str, ...] | list[Step]]

pytestmark = [pytest.mark.clients, pytest.mark.timeout(900)]


class Call:
    """Runs a framework's session through a script, and has what came of it on all sides."""

    def __init__(self, python: Path, server: ProxyServer, upstream: FakeUpstream, name: str) -> None:
        self._command = [python, CLIENTS / name / "session.py"]
        self._server = server
        self._upstream = upstream

    def run(self, script: list[Line], answers: Answers, *, voice: bool = False) -> list[Line]:
        """The framework's own history: a role, a text and whether it was interrupted, item by item.

        ``answers`` are the model's, by the newest words that it is shown; where one ends in ``HANG``, the
        model waits for the client to leave.
        """

        def model(request: Received) -> Iterable[Step]:
            if request.method == "GET":
                return by_default(request)
            if request.json["messages"][0]["content"] != "Be brief.":
                return answer(completion('{"facts": []}'))
            newest = request.json["messages"][-1]["content"]
            return streamed(
                next(words for said, words in answers.items() if newest.strip('"').endswith(said))
            )

        self._upstream.script = model
        environment = {"TURNKEEPER_URL": self._server.root, "SCRIPT": json.dumps(script)}
        done = subprocess.run(
            self._command,
            env={**os.environ, **environment, "VOICE": "yes" if voice else ""},
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        history: list[Line] = json.loads(done.stdout)
        return history

    @property
    def prompts(self) -> list[list[Line]]:
        """What the model was shown, request by request, less the instructions."""
        posted = [request.json for request in self._upstream.requests if request.method == "POST"]
        prompts = [body["messages"] for body in posted if body["messages"][0]["content"] == "Be brief."]
        return [messages[1:] for messages in prompts]

    @property
    def memory(self) -> list[Line]:
        """What memory says over HTTP once all is written."""
        settle(self._server)
        contents = self._server.client.get("/v1/memory/sessions/room-1").json()["contents"]
        return [
            {
                "role": entry["role"],
                "text": entry["content"],
                "interrupted": entry.get("metadata", {}).get("interrupted", False),
            }
            for entry in contents
        ]


def streamed(words: tuple[str, ...] | list[Step]) -> list[Step]:
    if isinstance(words, list):
        return words
    if words[-1] != HANG:
        return sse(stream_of(*words))
    return [HEAD, chunk(ROLE), *(chunk(delta(content=word)) for word in words[:-1]), HANG]


def calls(tool: str, *words: str) -> list[Step]:
    """An answer that says some words and calls a tool."""
    call = {
        "index": 0,
        "id": f"call_{tool}",
        "type": "function",
        "function": {"name": tool, "arguments": "{}"},
    }
    said = b"".join(delta(content=word) for word in words)
    return sse(ROLE + said + delta(tool_calls=[call]) + delta(finish="tool_calls") + DONE)


@pytest.fixture(params=["livekit", "pipecat"])
def call(
    request: pytest.FixtureRequest,
    python_of: Callable[[str], Path],
    serve: Serve,
    upstream: FakeUpstream,
) -> Call:
    name = request.param
    return Call(python_of(name), serve(CONFIG / f"{name}.yaml"), upstream, name)


def spoken(history: list[Line]) -> list[tuple[str, str, bool]]:
    return [(item["role"], item["text"].strip(), item["interrupted"]) for item in history]


def assert_told(prompt: list[Line], history: list[Line]) -> None:
    """The prompt shows the answers of the history, those that were interrupted with a mark."""
    lines = [line["content"] for line in prompt if line["role"] == "assistant"]
    items = [item for item in history if item["role"] == "assistant"][: len(lines)]
    for line, item in zip(lines, items, strict=True):
        heard, mark, _ = line.partition("[interrupted")
        assert (heard.strip(), bool(mark)) == (item["text"].strip(), item["interrupted"])


def test_an_answer_that_is_cut_while_it_is_generated_is_marked(call: Call) -> None:
    """Without a voice, a framework replays what was relayed until it hung up, exactly."""
    history = call.run(
        [
            {"says": "Tell me a joke."},
            {"says": "A story, please.", "after": "He was", "cuts": True},
            {"says": "Go on.", "after": "a time."},
            {"says": "And then?", "after": "a king", "cuts": True},
            {"says": "Enough!", "after": "three sons", "cuts": True},
            {"says": "Thanks.", "after": "wish."},
        ],
        {
            "Tell me a joke.": ("Why did the scarecrow ", "win an award? ", "He was", HANG),
            "A story, please.": ("Once upon ", "a time."),
            "Go on.": ("There lived ", "a king ", HANG),
            "And then?": ("He had ", "three sons.", HANG),
            "Enough!": ("As you ", "wish."),
            "Thanks.": ("You are welcome.",),
        },
    )
    assert [item["text"].strip() for item in history if item["interrupted"]] == [
        "Why did the scarecrow win an award? He was",
        "There lived a king",
        "He had three sons.",
    ]
    assert spoken(call.memory) == spoken(history)
    for prompt in call.prompts:
        assert_told(prompt, history)


def test_an_answer_that_is_cut_while_it_is_spoken_is_marked(call: Call) -> None:
    """With a voice, a framework replays what was spoken, while the model goes on or has ended long ago."""
    history = call.run(
        [
            {"says": "Tell me a joke."},
            {"says": "A story, please.", "after": "did the", "cuts": True},
            {"says": "Go on.", "after": "a time."},
            {"says": "And then?", "after": "king in", "cuts": True},
            {"says": "Enough!", "after": "He had", "cuts": True},
            {"says": "Thanks.", "after": "wish."},
        ],
        {
            "Tell me a joke.": ("Why did the scarecrow ", "win an award? ", "He was outstanding ", HANG),
            "A story, please.": ("Once upon ", "a time."),
            "Go on.": ("There lived a king ", "in a castle far away. ", "His name was Karl."),
            "And then?": ("He had three sons, ", "and all of them were lazy. And one ", HANG),
            "Enough!": ("As you ", "wish."),
            "Thanks.": ("You are welcome.",),
        },
        voice=True,
    )
    assert sum(item["interrupted"] for item in history) == 3, history
    assert spoken(call.memory) == spoken(history)
    for prompt in call.prompts:
        assert_told(prompt, history)


def test_words_beside_a_tool_call_that_is_interrupted_are_told_once(call: Call) -> None:
    """LiveKit shows a call that goes on as such, Pipecat one that it cancelled behind words of their own."""
    call.run(
        [
            {"says": "Is it warm?"},
            {"says": "When is high tide?", "after": "mild."},
            {"says": "Never mind.", "while": "tide", "cuts": True},
            {"says": "Thanks.", "after": "Fine."},
        ],
        {
            "Is it warm?": calls("weather"),
            "Mild.": ("It is ", "mild."),
            "When is high tide?": calls("tide", "Let me look it up. "),
            "Never mind.": ("Fine.",),
            "Thanks.": ("You are welcome.",),
        },
    )
    said = ["It is mild.", "Let me look it up.", "Fine."]
    lines = [line for line in call.prompts[-1] if line["role"] == "assistant"]
    assert [line["content"].strip() for line in lines if line.get("content")] == said
    assert sum("tool_calls" in line for line in lines) == 2
    texts = [entry["text"] for entry in call.memory if entry["role"] == "assistant"]
    assert [text.strip() for text in texts if text] == [*said, "You are welcome."]


def test_an_answer_of_which_nothing_came_is_not_told(call: Call) -> None:
    history = call.run(
        [
            {"says": "Tell me a joke."},
            {"says": "A story, please.", "while": "thinking", "cuts": True},
            {"says": "Thanks.", "after": "a time."},
        ],
        {
            "Tell me a joke.": [HEAD, chunk(ROLE), HANG],
            "A story, please.": ("Once upon ", "a time."),
            "Thanks.": ("You are welcome.",),
        },
    )
    assert spoken(call.memory) == spoken(history)
    assert_told(call.prompts[-1], history)


@pytest.mark.parametrize("call", ["livekit"], indirect=True)
def test_what_is_asked_before_the_caller_has_ended_is_not_told(call: Call) -> None:
    """LiveKit's preemptive generation asks for drafts of a line; the last of them alone was said."""
    history = call.run(
        [
            {"says": "A joke about scarecrows.", "drafts": ["A joke", "A joke about"]},
            {"says": "A story, please.", "after": "field.", "drafts": ["A story, please."]},
            {"says": "Thanks.", "after": "time.", "drafts": ["Thank"]},
        ],
        {
            "A joke": ("What?",),
            "about": ("Which ", HANG),
            "scarecrows.": ("He was outstanding ", "in his field."),
            "A story, please.": ("Once upon a time.",),
            "Thank": ("For ", HANG),
            "Thanks.": ("You are welcome.",),
        },
    )
    assert [prompt[-1]["content"] for prompt in call.prompts][:2] == ["A joke", "A joke about"]
    assert spoken(call.memory) == spoken(history)
    assert_told(call.prompts[-1], history)
