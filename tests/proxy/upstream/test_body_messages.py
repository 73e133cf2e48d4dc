"""Ids of tool calls, where an upstream does not take what another one made up."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from filters.message import Message
from proxy.upstream.body import SILENCE, arrange, compose
from proxy.upstream.providers import PROVIDERS, Provider
from tests.bodies import conversations, fields_of, messages_of
from tests.peers.strict_upstream import judge

CALL = [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
OF_VENDORS = [
    "call_abcdefghijklmnopqrstuvwx",  # OpenAI
    "toolu_01A09q90qw90lq917835lq9",  # Anthropic
    "functions.weather:0",  # Kimi
    "chatcmpl-tool-0123456789abcdef",  # vLLM
    "call_1",
    "",
    "ünïcödé!!",
]
FUNCTION = {"name": "end_call", "description": "Ends it.", "parameters": {"minimum": 1.0}}
MESSAGES = [
    {"role": "user", "content": "Weather?"},
    {"role": "assistant", "content": None, "function_call": {"name": "weather", "arguments": "{}", "x": 1}},
    {"role": "function", "name": "weather", "content": "Rain."},
    {"role": "assistant", "content": "It rains."},
    {"role": "user", "content": "And now?"},
]
ARRANGED = [name for name in PROVIDERS if name not in {"azure", "any", "ollama"}]
"""Those three arrange as OpenAI and vLLM do."""
keeps = pytest.mark.parametrize("name", ["openai", "azure", "any", "groq"])
lacks = pytest.mark.parametrize("name", ["mistral", "gemini", "anthropic", "vllm"])


@pytest.mark.parametrize(("name", "like"), [("azure", "openai"), ("any", "openai"), ("ollama", "vllm")])
def test_what_is_arranged_alike_is_tried_once(name, like):
    one, other = PROVIDERS[name], PROVIDERS[like]
    rules = ("roles", "functions", "system", "alternate", "user_ends", "answer_follows_tool", "nine_char_ids")
    assert [getattr(one, rule) for rule in rules] == [getattr(other, rule) for rule in rules]


def messages_from(*lines: str) -> list[Message]:
    """Messages written ``role: content``; ``call`` and ``tool`` are a tool call and its result."""
    return [_message_from(*line.split(": ", 1)) for line in lines]


def _message_from(role: str, content: str = "") -> Message:
    if role == "call":
        return Message(role="assistant", content=content, tool_calls=CALL)
    if role == "tool":
        return Message(role="tool", content=content, tool_call_id="1")
    return Message(role=role, content=content)


def kind(name: str) -> Provider:
    return PROVIDERS[name]


LATE = messages_from(
    "system: Be kind.", "system: Be brief.", "user: Hi", "system: (cut short)", "user: Well?"
)


@pytest.mark.parametrize("name", ["openai", "azure", "any", "groq"])
def test_where_system_messages_may_stand_anywhere_nothing_moves(name):
    assert arrange(kind(name), LATE) == LATE


@pytest.mark.parametrize("name", ["mistral", "gemini", "vllm", "anthropic"])
def test_a_late_system_message_keeps_its_place_as_a_marked_user_message(name):
    arranged_late = arrange(kind(name), messages_from("system: A", "user: B", "assistant: C", "system: D"))
    assert arranged_late == messages_from("system: A", "user: B", "assistant: C", "user: [system] D")


@pytest.mark.parametrize("name", ["mistral", "anthropic"])
def test_several_system_messages_may_lead(name):
    assert arrange(kind(name), LATE)[:2] == LATE[:2]


@pytest.mark.parametrize("name", ["gemini", "vllm"])
def test_leading_system_messages_become_one_where_only_one_is_taken(name):
    assert arrange(kind(name), LATE)[0] == Message(role="system", content="Be kind.\n\nBe brief.")


def test_content_parts_are_put_behind_each_other():
    part = {"type": "text", "text": "A"}
    messages = [Message(role="system", content=[part]), Message(role="system", content="B")]
    assert arrange(kind("gemini"), messages)[0].content == [part, {"type": "text", "text": "B"}]


def test_a_marked_message_says_so_in_its_first_text_part():
    picture = {"type": "image_url", "image_url": {"url": "u"}}
    late = Message(role="system", content=[picture, {"type": "text", "text": "A"}], name="rules")
    assert arrange(kind("mistral"), [*messages_from("user: Hi"), late])[1] == Message(
        role="user", content=[picture, {"type": "text", "text": "[system] A"}]
    )


@pytest.mark.parametrize("name", ["groq", "mistral", "gemini", "anthropic", "vllm"])
def test_a_developer_speaks_as_the_system_where_the_role_is_unknown(name):
    assert arrange(kind(name), messages_from("developer: A", "user: B")) == messages_from(
        "system: A", "user: B"
    )


@pytest.mark.parametrize("name", ["openai", "azure", "any"])
def test_a_developer_stays_one_where_the_role_is_known(name):
    assert arrange(kind(name), messages_from("developer: A", "user: B")) == messages_from(
        "developer: A", "user: B"
    )


@pytest.mark.parametrize("name", ["anthropic", "vllm"])
class TestTakingTurns:
    def test_joins_what_one_speaker_said_in_a_row(self, name):
        messages = messages_from("user: A", "user: B", "assistant: C", "assistant: D", "user: E")
        assert arrange(kind(name), messages) == messages_from("user: A\nB", "assistant: C\nD", "user: E")

    def test_joins_a_late_system_message_with_the_user_s(self, name):
        assert arrange(kind(name), LATE)[-1] == Message(
            role="user", content="Hi\n[system] (cut short)\nWell?"
        )

    def test_leaves_no_break_for_what_says_nothing(self, name):
        assert arrange(kind(name), messages_from("user: A", "user: ", "user: B")) == messages_from(
            "user: A\nB"
        )

    def test_lets_the_user_begin(self, name):
        messages = messages_from("system: A", "assistant: Hello!", "user: B")
        expected = messages_from("system: A", f"user: {SILENCE}", "assistant: Hello!", "user: B")
        assert arrange(kind(name), messages) == expected

    def test_joins_nothing_with_a_tool_call(self, name):
        messages = messages_from(
            "user: A", "assistant: B", "call: C", "tool: D", "call: E", "tool: F", "assistant: G"
        )
        assert arrange(kind(name), messages)[: len(messages)] == messages

    def test_keeps_unknown_fields_of_both(self, name):
        first, second = (Message(role="user", content=c, others={c: 1}) for c in "AB")
        assert arrange(kind(name), [first, second])[0].others == {"A": 1, "B": 1}


@pytest.mark.parametrize("name", ["mistral", "gemini", "anthropic"])
class TestTheEnd:
    def test_belongs_to_the_user(self, name):
        messages = messages_from("user: A", "assistant: Are you still there?")
        assert arrange(kind(name), messages) == [*messages, *messages_from(f"user: {SILENCE}")]

    def test_belongs_to_the_user_when_only_the_system_spoke(self, name):
        assert arrange(kind(name), messages_from("system: A"))[-1] == Message(role="user", content=SILENCE)

    @pytest.mark.parametrize(
        "lines", [["user: A"], ["user: A", "call: B", "tool: C"], ["user: A", "call: B"]]
    )
    def test_stays_as_it_is_otherwise(self, name, lines):
        assert arrange(kind(name), messages_from(*lines)) == messages_from(*lines)


def test_the_beginning_of_an_answer_may_end_a_request_to_mistral():
    begun = Message(role="assistant", content="Once", others={"prefix": True})
    assert arrange(kind("mistral"), [*messages_from("user: A"), begun])[-1] == begun


def test_mistral_hears_an_answer_between_a_tool_and_the_user():
    messages = messages_from("user: A", "call: ", "tool: B", "user: C")
    expected = messages_from("user: A", "call: ", "tool: B", f"assistant: {SILENCE}", "user: C")
    assert arrange(kind("mistral"), messages) == expected


@pytest.mark.parametrize("name", ARRANGED)
@given(messages=conversations(least=0))
def test_a_second_arrangement_changes_nothing(name, messages):
    once = arrange(kind(name), messages_of(messages))
    assert list(arrange(kind(name), once)) == list(once)


@pytest.mark.parametrize("name", ARRANGED)
@given(messages=conversations(), more=conversations())
def test_what_came_before_stays_what_it_was_when_the_conversation_goes_on(name, messages, more):
    """The upstream's prompt cache holds as far as the turn before the newest."""
    before = list(arrange(kind(name), messages_of(messages)))
    after = list(arrange(kind(name), messages_of(messages + more)))
    settled = max(len(before) - 2, 0)
    assert after[:settled] == before[:settled]


def composed(kind, messages):
    return json.loads(compose(PROVIDERS[kind], {}, messages_of(messages)))["messages"]


def talk(*ids):
    """A call under each of these ids, and its result."""
    calls = [{"id": name, "type": "function", "function": {"name": "f", "arguments": "{}"}} for name in ids]
    results = [{"role": "tool", "content": "Yes.", "tool_call_id": name} for name in ids]
    return [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": None, "tool_calls": calls},
        *results,
    ]


def test_mistral_gets_ids_that_it_takes_each_its_own():
    sent = composed("mistral", talk(*OF_VENDORS))
    assert judge("mistral", {"model": "m", "messages": sent}) is None
    ids = [call["id"] for call in sent[1]["tool_calls"]]
    assert ids == [result["tool_call_id"] for result in sent[2:]]
    assert len(set(ids)) == len(OF_VENDORS)


def test_its_own_stay_as_they_are():
    assert composed("mistral", talk("D681PevKs", "abcdefgh1")) == talk("D681PevKs", "abcdefgh1")


def test_the_same_id_is_the_same_in_every_turn():
    """The prompt's beginning does not change as a conversation grows."""
    before = composed("mistral", talk("call_1"))
    assert composed("mistral", [*talk("call_1"), *talk("call_2")])[: len(before)] == before


@pytest.mark.parametrize("kind", sorted(set(PROVIDERS) - {"mistral"}))
def test_all_others_get_them_as_they_came(kind):
    sent = composed(kind, talk(*OF_VENDORS))
    assert [call["id"] for call in sent[1]["tool_calls"]] == OF_VENDORS


@given(conversations(), st.none() | st.integers(-9, 9) | st.just([]))
def test_an_id_that_is_none_is_no_fault_of_ours(messages, odd):
    call = {"id": odd, "type": "function", "function": {"name": "f", "arguments": "{}"}}
    given = [[call], [{}], [], None]
    with_calls = [{"role": "assistant", "content": "Hi", "tool_calls": calls} for calls in given]
    sent = composed("mistral", [*messages, *with_calls])
    assert [message["tool_calls"] for message in sent if message.get("content") == "Hi"][-4:] == given


BODY = {"functions": [FUNCTION], "function_call": "auto"}


def sent(
    name: str, body: dict[str, Any], messages: list[dict[str, Any]] = MESSAGES, *allow: str
) -> dict[str, Any]:
    return json.loads(
        compose(PROVIDERS[name], fields_of(body), messages_of(messages), allow=frozenset(allow))
    )


@keeps
def test_functions_go_on_where_they_are_taken(name):
    composed = sent(name, BODY)
    assert composed | {"messages": []} == {**BODY, "messages": []}
    assert composed["messages"][1]["function_call"] == {"name": "weather", "arguments": "{}"}
    assert composed["messages"][2] == MESSAGES[2]


@lacks
def test_functions_become_tools_where_they_are_not(name):
    composed = sent(name, BODY)
    assert composed["tools"] == [{"type": "function", "function": FUNCTION}]
    assert composed["tool_choice"] == "auto"
    assert composed.keys() == {"tools", "tool_choice", "messages"}


@lacks
def test_a_named_function_becomes_a_chosen_tool(name):
    choice = sent(name, {**BODY, "function_call": {"name": "end_call"}})["tool_choice"]
    assert choice == {"type": "function", "function": {"name": "end_call"}}


@lacks
@pytest.mark.parametrize(
    "body", [{"functions": []}, {"functions": None}, {"functions": "x"}, {"function_call": "auto"}]
)
def test_without_a_function_there_is_no_tool(name, body):
    assert sent(name, body).keys() == {"messages"}


@lacks
@pytest.mark.parametrize("choice", ["sometimes", 1, None, {}])
def test_a_choice_that_says_nothing_known_is_not_sent(name, choice):
    assert sent(name, {**BODY, "function_call": choice}).keys() == {"tools", "messages"}


@lacks
@pytest.mark.parametrize("choice", ["auto", "none"])
def test_a_choice_that_a_tool_knows_too_is_sent(name, choice):
    assert sent(name, {**BODY, "function_call": choice})["tool_choice"] == choice


@lacks
def test_tools_count_before_functions(name):
    assert sent(name, {**BODY, "tools": []})["tools"] == []
    assert sent(name, {**BODY, "tool_choice": "required"})["tool_choice"] == "required"


@lacks
def test_functions_need_no_choice(name):
    assert sent(name, {"functions": [FUNCTION]}).keys() == {"tools", "messages"}


@lacks
def test_a_call_and_its_result_find_each_other(name):
    composed = sent(name, {})
    call, result = composed["messages"][1:3]
    (entry,) = call["tool_calls"]
    function = {"name": "weather", "arguments": "{}"}
    assert entry == {"id": entry["id"], "type": "function", "function": function}
    assert result["role"] == "tool"
    assert result["tool_call_id"] == call["tool_calls"][0]["id"]
    assert "function_call" not in call
    assert judge(name, composed) is None


@lacks
def test_a_call_that_is_null_is_no_call(name):
    message = {"role": "assistant", "content": "Hi", "function_call": None}
    composed = sent(name, {}, [MESSAGES[0], message, MESSAGES[-1]])
    assert composed["messages"][1] == {"role": "assistant", "content": "Hi"}


@lacks
def test_of_a_call_that_became_a_tools_nothing_is_left_though_it_is_allowed(name):
    message = {**MESSAGES[1], "note": "a"}
    composed = sent(name, {}, [MESSAGES[0], message, *MESSAGES[2:]], "function_call", "note")
    assert composed["messages"][1].keys() >= {"role", "tool_calls", "note"}
    assert "function_call" not in composed["messages"][1]


@lacks
def test_no_user_calls_a_function(name):
    message = {"role": "user", "content": "Hi", "function_call": {"name": "weather", "arguments": "{}"}}
    assert sent(name, {}, [message])["messages"] == [{"role": "user", "content": "Hi"}]


SIGNATURE = {"google": {"thought_signature": "s", "more": 1}, "more": 1}
SIGNED_CALL = {**CALL[0], "extra_content": SIGNATURE}
PICTURE = [{"type": "text", "text": "Hi", "extra_content": SIGNATURE}]


@pytest.mark.parametrize(
    ("name", "allow", "call"),
    [
        ("openai", (), CALL[0]),
        ("gemini", (), {**CALL[0], "extra_content": {"google": {"thought_signature": "s"}}}),
        ("openai", ("extra_content",), SIGNED_CALL),
        ("gemini", ("extra_content",), SIGNED_CALL),
    ],
)
def test_a_signature_goes_where_it_is_taken_and_all_where_it_is_allowed(name, allow, call):
    messages = [
        {"role": "user", "content": PICTURE},
        {"role": "assistant", "tool_calls": [SIGNED_CALL]},
        {"role": "tool", "tool_call_id": "1", "content": "Rain."},
    ]
    composed = sent(name, {}, messages, *allow)["messages"]
    assert composed[1]["tool_calls"] == [call]
    assert composed[0]["content"] == (PICTURE if allow else [{"type": "text", "text": "Hi"}])


@pytest.mark.parametrize(
    ("call", "taken"),
    [
        (
            {"id": "1", "type": "custom", "custom": {"name": "f", "input": "x", "more": 1}, "more": 1},
            {"id": "1", "type": "custom", "custom": {"name": "f", "input": "x"}},
        ),
        ({"id": "1", "custom": {"name": "f"}}, {"id": "1", "custom": {"name": "f"}}),
        ({"id": "1", "function": {"name": "f", "more": 1}}, {"id": "1", "function": {"name": "f"}}),
        ({"id": "1", "function": "f", "custom": None}, {"id": "1", "function": "f", "custom": None}),
    ],
)
def test_of_what_a_call_holds_what_is_known_is_sent(call, taken):
    composed = sent("openai", {}, [MESSAGES[0], {"role": "assistant", "tool_calls": [call]}])
    assert composed["messages"][1]["tool_calls"] == [taken]


PAIRS = {f"k{i}": "v" for i in range(20)}


@pytest.mark.parametrize(
    ("metadata", "stored"),
    [
        ({"k" * 64: "v" * 512}, {"k" * 64: "v" * 512}),
        ({"k" * 65: "v", "k": "v" * 513, "n": 1, "session_id": "s", "a": "b"}, {"a": "b"}),
        (dict([*PAIRS.items()][:16]), dict([*PAIRS.items()][:16])),
        (PAIRS, dict([*PAIRS.items()][:16])),
        ({}, None),
        ({"session_id": "s"}, None),
        ([], None),
    ],
)
def test_metadata_that_is_stored_is_within_openais_bounds(metadata, stored):
    body = {"metadata": metadata, "store": True}
    assert sent("openai", body, [MESSAGES[0]]).get("metadata") == stored
    assert sent("openai", {"metadata": metadata}, [MESSAGES[0]]).get("metadata") is None
    assert sent("openai", {"metadata": metadata}, [MESSAGES[0]], "metadata")["metadata"] == metadata
