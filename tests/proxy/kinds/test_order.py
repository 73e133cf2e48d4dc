import pytest
from hypothesis import given

from filters.message import Message
from proxy.upstream.body import SILENCE, arranged
from proxy.upstream.providers import PROVIDERS, Provider
from tests.bodies import conversations, messages_of

CALL = [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]


def said(*lines: str) -> list[Message]:
    """Messages written ``role: content``; ``call`` and ``tool`` are a tool call and its result."""
    return [_said(*line.split(": ", 1)) for line in lines]


def _said(role: str, content: str = "") -> Message:
    if role == "call":
        return Message(role="assistant", content=content, tool_calls=CALL)
    if role == "tool":
        return Message(role="tool", content=content, tool_call_id="1")
    return Message(role=role, content=content)


def kind(name: str) -> Provider:
    return PROVIDERS[name]


LATE = said("system: Be kind.", "system: Be brief.", "user: Hi", "system: (cut short)", "user: Well?")


@pytest.mark.parametrize("name", ["openai", "azure", "any", "groq"])
def test_where_system_messages_may_stand_anywhere_nothing_moves(name):
    assert arranged(kind(name), LATE) == LATE


@pytest.mark.parametrize("name", ["mistral", "gemini", "vllm", "anthropic"])
def test_a_late_system_message_keeps_its_place_as_a_marked_user_message(name):
    arranged_late = arranged(kind(name), said("system: A", "user: B", "assistant: C", "system: D"))
    assert arranged_late == said("system: A", "user: B", "assistant: C", "user: [system] D")


@pytest.mark.parametrize("name", ["mistral", "anthropic"])
def test_several_system_messages_may_lead(name):
    assert arranged(kind(name), LATE)[:2] == LATE[:2]


@pytest.mark.parametrize("name", ["gemini", "vllm"])
def test_leading_system_messages_become_one_where_only_one_is_taken(name):
    assert arranged(kind(name), LATE)[0] == Message(role="system", content="Be kind.\n\nBe brief.")


def test_content_parts_are_put_behind_each_other():
    part = {"type": "text", "text": "A"}
    messages = [Message(role="system", content=[part]), Message(role="system", content="B")]
    assert arranged(kind("gemini"), messages)[0].content == [part, {"type": "text", "text": "B"}]


def test_a_marked_message_says_so_in_its_first_text_part():
    picture = {"type": "image_url", "image_url": {"url": "u"}}
    late = Message(role="system", content=[picture, {"type": "text", "text": "A"}], name="rules")
    assert arranged(kind("mistral"), [*said("user: Hi"), late])[1] == Message(
        role="user", content=[picture, {"type": "text", "text": "[system] A"}]
    )


@pytest.mark.parametrize("name", ["groq", "mistral", "gemini", "anthropic", "vllm"])
def test_a_developer_speaks_as_the_system_where_the_role_is_unknown(name):
    assert arranged(kind(name), said("developer: A", "user: B")) == said("system: A", "user: B")


@pytest.mark.parametrize("name", ["openai", "azure", "any"])
def test_a_developer_stays_one_where_the_role_is_known(name):
    assert arranged(kind(name), said("developer: A", "user: B")) == said("developer: A", "user: B")


@pytest.mark.parametrize("name", ["anthropic", "vllm"])
class TestTakingTurns:
    def test_joins_what_one_speaker_said_in_a_row(self, name):
        messages = said("user: A", "user: B", "assistant: C", "assistant: D", "user: E")
        assert arranged(kind(name), messages) == said("user: A\nB", "assistant: C\nD", "user: E")

    def test_joins_a_late_system_message_with_the_user_s(self, name):
        assert arranged(kind(name), LATE)[-1] == Message(
            role="user", content="Hi\n[system] (cut short)\nWell?"
        )

    def test_leaves_no_break_for_what_says_nothing(self, name):
        assert arranged(kind(name), said("user: A", "user: ", "user: B")) == said("user: A\nB")

    def test_lets_the_user_begin(self, name):
        messages = said("system: A", "assistant: Hello!", "user: B")
        expected = said("system: A", f"user: {SILENCE}", "assistant: Hello!", "user: B")
        assert arranged(kind(name), messages) == expected

    def test_joins_nothing_with_a_tool_call(self, name):
        messages = said("user: A", "assistant: B", "call: C", "tool: D", "call: E", "tool: F", "assistant: G")
        assert arranged(kind(name), messages)[: len(messages)] == messages

    def test_keeps_unknown_fields_of_both(self, name):
        first, second = (Message(role="user", content=c, others={c: 1}) for c in "AB")
        assert arranged(kind(name), [first, second])[0].others == {"A": 1, "B": 1}


@pytest.mark.parametrize("name", ["mistral", "gemini", "anthropic"])
class TestTheEnd:
    def test_belongs_to_the_user(self, name):
        messages = said("user: A", "assistant: Are you still there?")
        assert arranged(kind(name), messages) == [*messages, *said(f"user: {SILENCE}")]

    def test_belongs_to_the_user_when_only_the_system_spoke(self, name):
        assert arranged(kind(name), said("system: A"))[-1] == Message(role="user", content=SILENCE)

    @pytest.mark.parametrize(
        "lines", [["user: A"], ["user: A", "call: B", "tool: C"], ["user: A", "call: B"]]
    )
    def test_stays_as_it_is_otherwise(self, name, lines):
        assert arranged(kind(name), said(*lines)) == said(*lines)


def test_the_beginning_of_an_answer_may_end_a_request_to_mistral():
    begun = Message(role="assistant", content="Once", others={"prefix": True})
    assert arranged(kind("mistral"), [*said("user: A"), begun])[-1] == begun


def test_mistral_hears_an_answer_between_a_tool_and_the_user():
    messages = said("user: A", "call: ", "tool: B", "user: C")
    expected = said("user: A", "call: ", "tool: B", f"assistant: {SILENCE}", "user: C")
    assert arranged(kind("mistral"), messages) == expected


@pytest.mark.parametrize("name", PROVIDERS)
@given(messages=conversations(least=0))
def test_a_second_arrangement_changes_nothing(name, messages):
    once = arranged(kind(name), messages_of(messages))
    assert list(arranged(kind(name), once)) == list(once)


@pytest.mark.parametrize("name", PROVIDERS)
@given(messages=conversations(), more=conversations())
def test_what_came_before_stays_what_it_was_when_the_conversation_goes_on(name, messages, more):
    """The upstream's prompt cache holds as far as the turn before the newest."""
    before = list(arranged(kind(name), messages_of(messages)))
    after = list(arranged(kind(name), messages_of(messages + more)))
    settled = max(len(before) - 2, 0)
    assert after[:settled] == before[:settled]
