"""Every platform's own body, on the shipped configuration, before upstreams that refuse what they can."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import AGORA
from tests.peers.fake_upstream import FakeUpstream, Received, Step, answer, by_default, sse, stream_of
from tests.peers.strict_upstream import JUDGES, judge
from tests.proxy_server import ProxyServer, Serve

GOLDEN = Path(__file__).parents[1] / "golden" / "dialects"
DIALECTS = sorted(path.stem for path in GOLDEN.glob("*.json"))
KINDS = ["openai", "azure", "groq", "mistral", "gemini", "anthropic", "vllm", "ollama"]


def strict(vendor: str) -> Callable[[Received], Iterable[Step]]:
    def script(request: Received) -> Iterable[Step]:
        refusal = judge(vendor, request.json)
        return answer(refusal.body, refusal.status) if refusal else by_default(request)

    return script


def post(proxy: ProxyServer, golden: dict[str, Any], **fields: Any) -> Any:
    body = {"model": "m", **golden["body"], **fields}
    return proxy.client.post(golden["path"], headers=golden["headers"], json=body)


def read(name: str) -> dict[str, Any]:
    return json.loads((GOLDEN / f"{name}.json").read_text())


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_dialects_own_body_reaches_a_strict_model_clean(
    agora: ProxyServer, upstream: FakeUpstream, dialect: str
) -> None:
    golden = read(dialect)
    upstream.script = strict("openai")
    got = post(agora, golden, stream=True)
    assert got.status_code == 200, got.text
    assert got.content == stream_of("Hello", " there.")
    assert got.headers.get("x-turnkeeper-session") == golden["identity"]["session"]
    for message in upstream.last.json["messages"]:
        assert message.keys() <= {"role", "content"}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_upstream_takes_every_dialect(
    serve: Serve, upstream: FakeUpstream, kind: str, tmp_path: Path
) -> None:
    text = AGORA.read_text().replace(":-openai}", f":-{kind}}}")
    assert kind in JUDGES
    proxy = serve(text)
    upstream.script = strict(kind)
    for dialect in DIALECTS:
        got = post(proxy, read(dialect))
        assert got.status_code == 200, f"{dialect}: {got.text}"


@pytest.mark.parametrize("kind", KINDS)
def test_an_answer_as_an_sdk_writes_it_out_is_taken_back(
    serve: Serve, upstream: FakeUpstream, kind: str
) -> None:
    proxy = serve(AGORA.read_text().replace(":-openai}", f":-{kind}}}"))
    upstream.script = strict(kind)
    nulls = {"name": None, "function_call": None, "tool_calls": None}
    answered = {"role": "assistant", "content": "Hello.", "annotations": [], **nulls}
    got = proxy.chat([{"role": "user", "content": "Hi"}, answered, {"role": "user", "content": "Go on."}])
    assert got.status_code == 200, got.text
    assert upstream.last.json["messages"][1] == {"role": "assistant", "content": "Hello."}


def test_agoras_published_body_arrives_with_its_interruption_restored(
    agora: ProxyServer, upstream: FakeUpstream
) -> None:
    upstream.script = strict("openai")
    golden = read("agora_custom")
    body = stream_of("Once", " upon a time 🏰")
    upstream.script = lambda request: sse(body) if not judge("openai", request.json) else answer({}, 400)
    got = post(agora, golden, stream=True)
    assert got.content == body
    assert upstream.last.json == {
        "model": "xxxx",
        "stream": True,
        "messages": [
            {"role": "assistant", "content": "How can I help you today?"},
            {"role": "user", "content": "Can you tell me a joke?"},
            {
                "role": "assistant",
                "content": "Why did the scarecrow [interrupted here; the caller did not hear: "
                "win an award? Because he was outstanding in his field!]",
            },
            {"role": "user", "content": "You know what? Tell me a story instead."},
            {
                "role": "assistant",
                "content": "Once upon a time in a land far away, there lived a brave knight who fought "
                "dragons and saved princesses.",
            },
            {"role": "assistant", "content": "Are you still there?"},
        ],
    }


def test_elevenlabs_user_goes_on_as_openai_s(agora: ProxyServer, upstream: FakeUpstream) -> None:
    golden = read("elevenlabs")
    post(agora, golden)
    assert (golden["body"]["user_id"], upstream.last.json["user"]) == ("user1", "user1")
    assert not {"user_id", "elevenlabs_extra_body", "max_tokens"} & upstream.last.json.keys()


SECRETS = ["rtm_token", "subscriber_token"]


def test_what_llm_params_merge_into_the_body_stays_here(agora: ProxyServer, upstream: FakeUpstream) -> None:
    golden = read("agora_params")
    post(agora, golden)
    assert set(SECRETS) <= golden["body"].keys()
    assert upstream.last.json.keys() == {"model", "messages", "stream"}


def test_system_messages_in_front_stay_in_front(agora: ProxyServer, upstream: FakeUpstream) -> None:
    system = {"role": "system", "content": "Be brief."}
    golden = read("agora_custom")
    golden["body"]["messages"].insert(0, system)
    post(agora, golden)
    assert upstream.last.json["messages"][0] == system
    assert len(upstream.last.json["messages"]) == 7


@pytest.mark.parametrize("first_turn", [0, 1])
@pytest.mark.parametrize("scale", [1, 1000])
def test_turns_from_0_or_1_and_times_in_seconds_or_milliseconds(
    serve: Serve, upstream: FakeUpstream, first_turn: int, scale: int
) -> None:
    proxy = serve(AGORA.read_text().replace("# - timestamp_prefix", "- timestamp_prefix"))
    message = {"role": "user", "content": "Hi", "turn_id": first_turn, "timestamp": 1678901234 * scale}
    assert proxy.chat([message]).status_code == 200
    assert upstream.last.json["messages"] == [{"role": "user", "content": "[17:27] Hi"}]
