"""Runs the tests of a configuration's pipelines without a model, and makes cases of recorded prompts."""

import json
import traceback
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import PurePath
from typing import Any, Final

import msgspec
import yaml

from filters.base import AnswerFilter, Context
from proxy.answer import stream_filters
from proxy.errors import ConfigError, FilterFailed, TurnkeeperError
from proxy.settings.document import MAX_BYTES
from proxy.settings.pipeline import ExpectedMessages, PipelineTest
from proxy.trial.explain import message_dict, run_filters
from proxy.trial.replay import ReplayedTurn
from proxy.turn import request
from proxy.turn.identity import Identity, identify
from proxy.turn.pipeline import Pipeline

_TENANT, _MODEL = "default", "a-model"
Case = Mapping[str, Any]
_WIDTH: Final = 110
_RARE_BREAKS: Final = frozenset("\x85\u2028\u2029")


class Failure(msgspec.Struct, frozen=True):
    """A failed expectation; ``expected`` and ``actual`` are ``UNSET`` where there is no such value."""

    what: str
    expected: Any = msgspec.UNSET
    actual: Any = msgspec.UNSET


class Result(msgspec.Struct, frozen=True):
    """The result of one test, which has passed if it has no failures."""

    pipeline: str
    name: str
    failures: tuple[Failure, ...]


def run_test(test: PipelineTest, pipeline: Pipeline, answer: Sequence[AnswerFilter]) -> Result:
    """Runs a test through a pipeline and the filters of its answer; an error is a failure."""
    try:
        failures = tuple(_failures(test, pipeline, answer))
    except TurnkeeperError as error:
        detail = error.detail if isinstance(error, FilterFailed) else ""
        failures = (Failure(f"{error.message.rstrip('.')}: {detail}" if detail else error.message),)
    except Exception as error:  # noqa: BLE001 - a filter of the user's own may raise anything
        where = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{PurePath(where.filename).name}:{where.lineno}"
        text = f": {error}" if str(error) else ""
        what = f"a filter of the answer failed with {type(error).__name__} at {place}{text}"
        failures = (Failure(what),)
    return Result(pipeline.name, test.name, failures)


def sent_body(test: PipelineTest, pipeline: Pipeline) -> tuple[Mapping[str, Any], Identity]:
    """Returns the body that the model would get for a test's request, and the request's identity."""
    body = {"model": _MODEL, **test.request, "messages": test.messages}
    data = json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")
    call = request.read_request(
        data, {name.lower(): value for name, value in test.headers.items()}, test.query
    )
    identity = identify(call, pipeline.id_places, _TENANT)
    sent: Mapping[str, Any] = json.loads(run_filters(call, identity, pipeline, test.time.timestamp()).sent)
    return sent, identity


def _failures(test: PipelineTest, pipeline: Pipeline, answer: Sequence[AnswerFilter]) -> Iterator[Failure]:
    sent, identity = sent_body(test, pipeline)
    messages: Sequence[Mapping[str, Any]] = sent["messages"]
    if isinstance(test.expect, ExpectedMessages):
        # The patterns must match in this order.
        rest = iter(messages)
        for pattern in test.expect.contains:
            if not any(_matches(pattern, message) for message in rest):
                yield Failure("messages lack, in this order,", pattern, messages)
                break
        for pattern in test.expect.lacks:
            for message in messages:
                if _matches(pattern, message):
                    yield Failure("messages contain", msgspec.UNSET, [message])
    elif test.expect is not None and list(test.expect) != list(messages):
        yield Failure("messages", list(test.expect), messages)
    for name, value in test.parameters.items():
        actual = sent.get(name, msgspec.UNSET)
        if actual != value:
            yield Failure(f"parameter {name}", value, actual)
    for name in test.absent:
        if name in sent:
            yield Failure(f"parameter {name}", msgspec.UNSET, sent[name])
    for name, expected, actual in (
        ("session", test.session, identity.session),
        ("user", test.user, identity.user),
    ):
        if name in test.model_fields_set and expected != actual:
            yield Failure(name, expected, actual)
    expect = test.expect_answer
    if expect is None:
        return
    context = Context(now=test.time.timestamp(), tenant=_TENANT, session=identity.session, user=identity.user)
    text = stream_filters.filter_text(answer, context, test.answer)
    if isinstance(expect, str):
        if text != expect:
            yield Failure("answer", expect, text)
        return
    for words in expect.contains:
        if words not in text:
            yield Failure(f"answer lacks {words!r}", words, text)
    for words in expect.lacks:
        if words in text:
            yield Failure(f"answer contains {words!r}", msgspec.UNSET, text)


def _matches(pattern: Any, message: Mapping[str, Any]) -> bool:
    return all(name in message and message[name] == value for name, value in pattern.items())


class _Dumper(yaml.SafeDumper):
    """Escapes rare line breaks in texts, which YAML reads as spaces between single quotes."""

    def represent_str(self, data: str) -> yaml.ScalarNode:
        """Represents a text, in double quotes if it has such a line break."""
        style = '"' if _RARE_BREAKS.intersection(data) else None
        return self.represent_scalar("tag:yaml.org,2002:str", data, style)


_Dumper.add_representer(str, _Dumper.represent_str)


def recorded_case(session: str, turn: ReplayedTurn, pipeline: Pipeline) -> Case:
    """Makes a case of a recorded prompt, which expects what ``pipeline`` sends; cases have no memory.

    Raises TurnkeeperError where nothing is sent.
    """
    case: dict[str, Any] = {
        "name": f"{session}, prompt {turn.number}",
        "headers": {"X-Session-Id": session, **({"X-User-Id": turn.user} if turn.user else {})},
        "time": datetime.fromtimestamp(turn.at, UTC).isoformat(timespec="seconds"),
        "messages": [_short_form(message_dict(message)) for message in turn.window],
    }
    sent, _ = sent_body(PipelineTest.model_validate(case), pipeline)
    return {**case, "expect": [_short_form(message) for message in sent["messages"]]}


def with_cases(text: str, pipeline: str, cases: Sequence[Case]) -> str:
    """Appends cases to those of a pipeline in a configuration's text, and leaves the rest as it is written.

    Raises ConfigError for a pipeline or tests in YAML's flow style, and for a text that becomes too long.
    """
    node = yaml.compose(text, Loader=yaml.CSafeLoader)
    of_pipeline = _child(_child(node, "pipelines"), pipeline)
    tests = _child(of_pipeline, "tests")
    listing = yaml.dump(
        [_literal(case) for case in cases], Dumper=_Dumper, allow_unicode=True, sort_keys=False, width=_WIDTH
    )
    where: yaml.Node
    if isinstance(tests, yaml.SequenceNode) and not tests.flow_style:
        where, column, lines = tests, tests.start_mark.column, listing
    elif isinstance(of_pipeline, yaml.MappingNode) and not of_pipeline.flow_style and tests is None:
        where, column = of_pipeline, of_pipeline.start_mark.column
        lines = "tests:\n" + _indented(listing, 2)
    else:
        raise ConfigError(f"pipelines.{pipeline}: write the pipeline over several lines, and 'tests:' too")
    before, after = _split(text, where.end_mark.index)
    extended = f"{before}\n{_indented(lines, column)}{after}"
    if len(extended.encode()) > MAX_BYTES:
        raise ConfigError(
            f"with these cases it would have more than {MAX_BYTES // 1024} KiB; choose prompts with --turn"
        )
    return extended


def _split(text: str, index: int) -> tuple[str, str]:
    """Splits a text after the last line of a node that ends before ``index``."""
    before = text[:index].rstrip()
    return before, text[len(before) :].removeprefix("\n")


def _child(node: yaml.Node | None, name: str) -> yaml.Node | None:
    if not isinstance(node, yaml.MappingNode):
        return None
    return next((value for key, value in node.value if key.value == name), None)


def _indented(text: str, columns: int) -> str:
    return "".join(" " * columns + line if line.strip() else line for line in text.splitlines(keepends=True))


def _short_form(message: Mapping[str, Any]) -> Any:
    """A message in a case's short form, if it has only a role and a text; else as a dictionary."""
    content = message.get("content")
    if message.keys() == {"role", "content"} and isinstance(content, str) and message["role"].isalpha():
        return f"{message['role']}: {content}"
    return dict(message)


def _literal(value: Any) -> Any:
    """Doubles each ``$`` in a value's texts, as it would begin the name of a variable."""
    if isinstance(value, Mapping):
        return {key: _literal(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_literal(inner) for inner in value]
    return value.replace("$", "$$") if isinstance(value, str) else value
