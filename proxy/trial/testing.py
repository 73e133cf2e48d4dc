"""The tests beside the pipelines of a configuration, run without a model."""

import json
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any

import msgspec

from filters.base import AnswerFilter, Context
from proxy.answer import stream_filters
from proxy.errors import FilterFailed, TurnkeeperError
from proxy.settings.pipeline_tests import ExpectedAnswer, ExpectedMessages, PipelineTest
from proxy.trial.explain import run_filters
from proxy.turn import request
from proxy.turn.identity import Identity, identify
from proxy.turn.pipeline import Pipeline

_TENANT, _MODEL = "default", "a-model"


class Failure(msgspec.Struct, frozen=True):
    """One expectation that does not hold; ``expected`` and ``actual`` are ``UNSET`` where there is none."""

    what: str
    expected: Any = msgspec.UNSET
    actual: Any = msgspec.UNSET


class Result(msgspec.Struct, frozen=True):
    """The result of one test, which passes without failures."""

    pipeline: str
    name: str
    failures: tuple[Failure, ...]


def run_test(test: PipelineTest, pipeline: Pipeline, answer: Sequence[AnswerFilter]) -> Result:
    """Run a test through a pipeline and the filters of its answer."""
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
    """The body that the model would get of a test's request, and whose request it is."""
    body = {"model": _MODEL, **test.request, "messages": test.messages}
    data = json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")
    call = request.read_request(
        data, {name.lower(): value for name, value in test.headers.items()}, test.query
    )
    identity = identify(call, pipeline.places, _TENANT)
    sent: Mapping[str, Any] = json.loads(run_filters(call, identity, pipeline, test.time.timestamp()).sent)
    return sent, identity


def _failures(test: PipelineTest, pipeline: Pipeline, answer: Sequence[AnswerFilter]) -> Iterator[Failure]:
    sent, identity = sent_body(test, pipeline)
    yield from _message_failures(test.expect, sent["messages"])
    yield from _field_failures(test, sent, identity)
    context = Context(now=test.time.timestamp(), tenant=_TENANT, session=identity.session, user=identity.user)
    if test.expect_answer is not None:
        yield from _answer_failures(
            test.expect_answer, stream_filters.filter_text(answer, context, test.answer)
        )


def _message_failures(
    expect: ExpectedMessages | Sequence[Any] | None, sent: Sequence[Mapping[str, Any]]
) -> Iterator[Failure]:
    if expect is None:
        return
    if not isinstance(expect, ExpectedMessages):
        if list(expect) != list(sent):
            yield Failure("messages", list(expect), sent)
        return
    # Each must come behind the one before it.
    rest = iter(sent)
    for expected in expect.contains:
        if not any(_matches(expected, message) for message in rest):
            yield Failure("messages lack, in this order,", expected, sent)
            break
    for excluded in expect.lacks:
        for message in sent:
            if _matches(excluded, message):
                yield Failure("messages contain", msgspec.UNSET, [message])


def _matches(expected: Any, message: Mapping[str, Any]) -> bool:
    return all(name in message and message[name] == value for name, value in expected.items())


def _field_failures(test: PipelineTest, sent: Mapping[str, Any], identity: Identity) -> Iterator[Failure]:
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


def _answer_failures(expect: ExpectedAnswer | str, answer: str) -> Iterator[Failure]:
    if isinstance(expect, str):
        if answer != expect:
            yield Failure("answer", expect, answer)
        return
    for words in expect.contains:
        if words not in answer:
            yield Failure(f"answer lacks {words!r}", words, answer)
    for words in expect.lacks:
        if words in answer:
            yield Failure(f"answer contains {words!r}", msgspec.UNSET, answer)
