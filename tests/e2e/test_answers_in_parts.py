"""Answers whose content comes in parts, as Mistral sends it: filtered, heard and remembered."""

import json
from typing import Any

import pytest

from tests.peers.fake_upstream import DONE, ROLE, FakeUpstream, answer, completion, delta, sse
from tests.proxy_server import Serve
from tests.remembering import stored_entries, texts

CONFIG = """
memory: {sessions: "${MEMORY_URL}"}
upstreams: {main: {base_url: "${UPSTREAM_BASE_URL}", retries: 0}}
pipelines:
  default: {upstreams: [main], request: [], answer: [%s]}
"""
CHAINS = ["", "redact", "speakable", "hide_reasoning", "hide_reasoning, redact, speakable"]
THOUGHT = {"type": "thinking", "thinking": [{"type": "text", "text": "Their address is known."}]}
FINISH = delta(finish="stop") + DONE


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def words_in(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "".join(part["text"] for part in content or () if part["type"] == "text")


def spoken(stream: bytes) -> str:
    chunks = [json.loads(line[6:]) for line in stream.splitlines() if line.startswith(b"data: {")]
    return "".join(words_in(choice["delta"].get("content")) for each in chunks for choice in each["choices"])


PARTS = {
    "parts alone": [[text("Mail me ")], [text("now please")]],
    "two in one": [[text("Mail me "), text("now please")]],
    "thoughts first": [[THOUGHT], [text("Mail me ")], [text("now please")]],
    "thoughts with words": [[THOUGHT, text("Mail me ")], "now please"],
    "words, then parts": ["Mail me ", [text("now please")]],
    "parts, then words": [[text("Mail me ")], "now", " please"],
}


@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("name", PARTS)
def test_no_part_is_lost_on_the_way(serve: Serve, upstream: FakeUpstream, name: str, chain: str) -> None:
    upstream.says(*sse(ROLE + b"".join(delta(content=each) for each in PARTS[name]) + FINISH))
    proxy = serve(CONFIG % chain)
    got = proxy.chat(stream=True, headers={"X-Session-Id": "s1"})
    assert spoken(got.content) == "Mail me now please"
    assert texts(stored_entries(proxy)) == [("user", "Hi"), ("assistant", "Mail me now please")]


@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize(
    "parts",
    [
        [text("Mail me "), text("now please")],
        [THOUGHT, text("Mail me now please")],
        [text("Mail me now please"), THOUGHT],
        [text("Mail me now"), THOUGHT, text(" please")],
    ],
)
def test_no_part_of_a_whole_answer_is_lost(
    serve: Serve, upstream: FakeUpstream, parts: list[dict[str, Any]], chain: str
) -> None:
    whole = completion()
    whole["choices"][0]["message"]["content"] = parts
    upstream.says(*answer(whole))
    proxy = serve(CONFIG % chain)
    got = proxy.chat(headers={"X-Session-Id": "s1"}).json()["choices"][0]["message"]["content"]
    assert words_in(got) == "Mail me now please"
    assert (THOUGHT in got) is (THOUGHT in parts and "hide_reasoning" not in chain)
    assert texts(stored_entries(proxy)) == [("user", "Hi"), ("assistant", "Mail me now please")]


def test_what_stands_across_parts_is_redacted(serve: Serve, upstream: FakeUpstream) -> None:
    parts: list[Any] = [[text("Mail ann@exam")], [text("ple.org or ")], "bob@example.org", [text(" now")]]
    upstream.says(*sse(ROLE + b"".join(delta(content=each) for each in parts) + FINISH))
    proxy = serve(CONFIG % "redact")
    assert spoken(proxy.chat(stream=True).content) == "Mail [email] or [email] now"


def test_thoughts_alone_are_no_speech(serve: Serve, upstream: FakeUpstream) -> None:
    upstream.says(*sse(ROLE + delta(content=[THOUGHT]) + FINISH))
    proxy = serve(CONFIG % "")
    assert proxy.chat(stream=True, headers={"X-Session-Id": "s1"}).status_code == 200
    assert texts(stored_entries(proxy)) == []


def test_a_refusal_in_parts_was_heard(serve: Serve, upstream: FakeUpstream) -> None:
    refusal = {"type": "refusal", "refusal": "That I will not do."}
    upstream.says(*sse(ROLE + delta(content=[refusal]) + FINISH))
    proxy = serve(CONFIG % "redact")
    proxy.chat(stream=True, headers={"X-Session-Id": "s1"})
    assert texts(stored_entries(proxy))[1:] == [("assistant", "That I will not do.")]


def test_a_whole_answer_in_which_nothing_changes_passes_as_it_came(
    serve: Serve, upstream: FakeUpstream
) -> None:
    for content in ("Mail me now please", [text("Mail me now please")]):
        whole = completion()
        whole["choices"][0]["message"]["content"] = content
        body = json.dumps(whole, indent=3).encode()
        upstream.says(*answer(body))
        assert serve(CONFIG % "redact, speakable").chat().content == body
