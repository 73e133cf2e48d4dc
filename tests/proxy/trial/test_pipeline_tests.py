from pathlib import Path

import msgspec
import pytest

from filters.base import AnswerFilter, Context, RequestFilter
from proxy.describe.schema import model_schema
from proxy.settings.load import check_config
from proxy.settings.pipeline import PipelineTest
from proxy.trial import testing
from tests.ready import UPSTREAM, pipeline_of, results_of

STEPS = "[repair_history, {drop_messages: {sources: [silence]}}]"
SILENCE = {"role": "assistant", "content": "Hello?", "metadata": {"source": "silence"}}
CONFIG = UPSTREAM + f"pipelines: {{default: {{upstreams: [main], request: {STEPS}}}}}"
TALK = ["user: Hi", SILENCE, "user: Bye"]


class Upper(AnswerFilter):
    def open(self, context: Context):
        return self

    def feed(self, delta):
        return {"content": delta["content"].upper()}

    def close(self):
        return {"content": "."}


class Broken(AnswerFilter):
    def open(self, context: Context):
        raise ZeroDivisionError


@pytest.fixture
def failures(tmp_path):
    """What is not as a case wants it, in the words of the failure."""
    pipeline = pipeline_of(tmp_path / "c.yaml", CONFIG)

    def tried(answer_filter=Upper, **case):
        given = {"name": "x", "messages": TALK, **case}
        result = testing.run_test(PipelineTest.model_validate(given), pipeline, [answer_filter()])
        return [failure.what for failure in result.failures]

    return tried


@pytest.mark.parametrize(
    ("case", "failed"),
    [
        ({}, []),
        ({"expect": ["user: Hi", "user: Bye"]}, []),
        ({"messages": [{"user": "Hi"}], "expect": [{"user": "Hi"}]}, []),  # as YAML reads it without quotes
        ({"expect": ["user: Hi"]}, ["messages"]),
        ({"expect": ["user: Hi", {"role": "user", "content": "Bye", "name": "x"}]}, ["messages"]),
        ({"expect": []}, ["messages"]),
        ({"expect": {"contains": ["user: Hi", {"content": "Bye"}]}}, []),
        ({"expect": {"contains": [{"content": "Bye"}, "user: Hi"]}}, ["messages lack, in this order,"]),
        ({"expect": {"contains": ["user: Hi", "user: Hi"]}}, ["messages lack, in this order,"]),
        ({"expect": {"lacks": [{"role": "assistant"}]}}, []),
        ({"expect": {"lacks": [{"role": "user"}]}}, ["messages contain", "messages contain"]),
        ({"request": {"temperature": 1}, "parameters": {"temperature": 1}}, []),
        ({"request": {"temperature": 1}, "parameters": {"temperature": 2}}, ["parameter temperature"]),
        ({"parameters": {"temperature": 2}}, ["parameter temperature"]),
        ({"request": {"token": "x"}, "absent": ["token"]}, []),
        ({"request": {"user": "x"}, "absent": ["user"]}, ["parameter user"]),
        ({"headers": {"X-Session-Id": "s"}, "session": "s"}, []),
        ({"query": {"session_id": "s"}, "session": "s"}, []),
        ({"session": "s"}, ["session"]),
        ({"session": None, "user": None}, []),
        ({"headers": {"X-User-Id": "u"}, "user": None}, ["user"]),
        ({"headers": {"X-Session-Id": "s"}, "session": None}, ["session"]),
        ({"answer": ["a", "b"], "expect_answer": "AB."}, []),
        ({"answer": "ab", "expect_answer": "AB."}, []),
        ({"answer": "ab", "expect_answer": "ab"}, ["answer"]),
        ({"answer": "ab", "expect_answer": {"contains": ["B."], "lacks": ["b"]}}, []),
        (
            {"answer": "ab", "expect_answer": {"contains": ["x"], "lacks": ["A"]}},
            ["answer lacks 'x'", "answer contains 'A'"],
        ),
        (
            {"messages": [{"role": "user", "content": 1}]},
            ["'messages[0].content' must be a string, an array of parts or null."],
        ),
    ],
)
def test_a_case_fails_for_each_thing_that_is_not_as_it_wants(failures, case, failed):
    assert failures(**case) == failed


def test_an_answer_filter_that_fails_is_a_failure_of_the_case(failures):
    assert failures(Broken, expect_answer="x") == [
        f"a filter of the answer failed with ZeroDivisionError at {Path(__file__).name}:32"
    ]


def test_the_time_of_a_case_is_what_filters_take_for_now(tmp_path):
    given = {"name": "x", "messages": ["user: Hi"], "time": "2026-11-20T10:00:00Z"}
    assert PipelineTest.model_validate(given).time.timestamp() == 1795168800
    assert (
        PipelineTest.model_validate({**given, "time": "2026-11-20T10:00:00+01:00"}).time.timestamp()
        == 1795165200
    )
    assert PipelineTest.model_validate({k: given[k] for k in ("name", "messages")}).time.tzinfo is not None


class Clock(RequestFilter):
    def apply(self, messages, context):
        return [message.saying(f"{context.now} {context.session}") for message in messages]


def test_filters_are_told_the_time_and_the_session_of_a_case(tmp_path):
    pipeline = msgspec.structs.replace(pipeline_of(tmp_path / "c.yaml", CONFIG), filters=(Clock(),))
    given = {"messages": ["user: Hi"], "query": {"session_id": "s"}, "expect": ["user: 1795168800.0 s"]}
    case = PipelineTest.model_validate({"name": "x", "time": "2026-11-20T10:00:00Z", **given})
    assert testing.run_test(case, pipeline, []).failures == ()


def test_a_failure_holds_what_was_expected_and_what_came(tmp_path):
    file = tmp_path / "c.yaml"
    file.write_text(CONFIG[:-2] + ", tests: [{name: one, messages: ['user: Hi'], expect: ['user: Ho']}]}}")
    (result,) = results_of(file)
    assert (result.pipeline, result.name, len(result.failures)) == ("default", "one", 1)
    assert result.failures[0].expected == [{"role": "user", "content": "Ho"}]
    assert result.failures[0].actual == [{"role": "user", "content": "Hi"}]


@pytest.mark.parametrize(
    ("case", "said"),
    [
        (
            "{name: x, messages: ['user: Hi'], expects: []}",
            "tests.1.expects: unknown key 'expects'; did you mean 'expect'?",
        ),
        ("{name: x, messages: ['user: Hi'], memory: []}", "tests.1.memory: unknown key 'memory'"),
        (
            "{name: x, messages: ['user: Hi'], expect: {contain: []}}",
            "tests.1.expect.contain: unknown key 'contain'; did you mean 'contains'? Available: contains",
        ),
        (
            "{name: x, messages: ['user: Hi'], expect_answer: {contain: []}}",
            "tests.1.expect_answer.contain: unknown key 'contain'; did you mean 'contains'?",
        ),
        ("{messages: ['user: Hi']}", "tests.1.name: missing key; add it"),
        ("{name: x}", "tests.1.messages: missing key; add it"),
        ("{name: x, messages: []}", "tests.1.messages: write at least one message"),
        ("{name: x, messages: [Hi]}", "tests.1.messages.1: write a message such as 'user: Hello'"),
        ("{name: x, messages: [7]}", "tests.1.messages.1: write a message such as"),
        ("{name: x, messages: [{content: Hi}]}", "tests.1.messages.1: this message has no role"),
        (
            "{name: x, messages: ['usr: Hi']}",
            "tests.1.messages.1: unknown role 'usr'; did you mean 'user'? Available: system,",
        ),
        (
            "{name: x, messages: [{role: User, content: Hi}]}",
            "tests.1.messages.1: unknown role 'User'; did you mean 'user'?",
        ),
        ("{name: x, messages: [{role: 7, content: Hi}]}", "tests.1.messages.1: this message has no role"),
        (
            "{name: x, messages: ['user: Hi'], expect: ['usr: Hi']}",
            "tests.1.expect.1: unknown role 'usr'",
        ),
        (
            "{name: x, messages: ['user: Hi'], expect: {lacks: [{role: asistant}]}}",
            "tests.1.expect.lacks.1: unknown role 'asistant'; did you mean 'assistant'?",
        ),
        ("{name: x, messages: ['user: Hi'], expect: [Hi]}", "tests.1.expect.1: write a message such as"),
        (
            "{name: x, messages: ['user: Hi'], expect: {lacks: [{}]}}",
            "tests.1.expect.lacks.1: the message is empty",
        ),
        ("{name: x, messages: ['user: Hi'], expect: 7}", "tests.1.expect: expected keys and values"),
        ("{name: x, messages: ['user: Hi'], time: noon}", "tests.1.time: write a time with its zone"),
        (
            "{name: x, messages: ['user: Hi'], time: 2026-11-20T10:00:00}",
            "tests.1.time: write a time with its zone",
        ),
        ("{name: x, messages: ['user: Hi'], answer: 7}", "tests.1.answer: write the answer as text"),
        (
            "{name: x, messages: ['user: Hi'], request: {messages: []}}",
            "tests.1.request: the messages stand beside",
        ),
    ],
)
def test_a_case_that_is_written_wrongly_is_a_fault_of_the_file(tmp_path, case, said):
    file = tmp_path / "c.yaml"
    file.write_text(CONFIG[:-2] + f",\n tests: [{case}]}}}}")
    found = [str(fault).removeprefix(f"{file}:") for fault in check_config(file, {}).errors]
    assert len(found) == 1
    assert found[0].startswith(f"3: pipelines.default.{said}")


def test_a_message_may_hold_colons_and_lines():
    case = PipelineTest.model_validate({"name": "x", "messages": ["user: a: b\nc", "assistant:x"]})
    assert case.messages == ({"role": "user", "content": "a: b\nc"}, {"role": "assistant", "content": "x"})


def test_every_key_of_a_case_has_help_and_a_schema():
    described = model_schema(PipelineTest)["properties"]
    assert all("description" in described[name] for name in PipelineTest.model_fields)
    schema = PipelineTest.model_json_schema()
    assert {"type": "string"} in schema["properties"]["messages"]["items"]["anyOf"]
