"""Cases of a configuration, tried: what becomes of each request, and whether it is what was wanted."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from filters.base import AnswerFilter, Context
from proxy.answer import stream_filters
from proxy.errors import TurnkeeperError
from proxy.settings.pipeline_tests import ExpectedAnswer, ExpectedMessages, PipelineTest
from proxy.trial import explain
from proxy.turn import identity, request
from proxy.turn.identity import Identity
from proxy.turn.pipeline import Pipeline

_TENANT, _MODEL = "default", "a-model"


class Failure(msgspec.Struct, frozen=True):
    """One thing that is not as a case wants it. ``expected`` and ``actual`` are ``UNSET`` where none is."""

    what: str
    expected: Any = msgspec.UNSET
    actual: Any = msgspec.UNSET


class Result(msgspec.Struct, frozen=True):
    """What came of one case; without failures it holds."""

    pipeline: str
    name: str
    failures: tuple[Failure, ...]


def run_test(case: PipelineTest, pipeline: Pipeline, answer: Sequence[AnswerFilter]) -> Result:
    """A case on its way through a pipeline and the filters of its answer."""
    try:
        failures = tuple(_failures(case, pipeline, answer))
    except TurnkeeperError as error:
        failures = (Failure(error.message),)
    except Exception as error:  # noqa: BLE001 - a filter of the user's own may raise anything
        failures = (Failure(f"a filter of the answer failed with {type(error).__name__}"),)
    return Result(pipeline.name, case.name, failures)


def _failures(case: PipelineTest, pipeline: Pipeline, answer: Sequence[AnswerFilter]) -> Iterator[Failure]:
    headers = {name.lower(): value for name, value in case.headers.items()}
    call = request.read_request(_body(case), headers, case.query)
    who = identity.identify(call, pipeline.places, _TENANT)
    now = case.time.timestamp()
    sent = json.loads(explain.run_filters(call, who, pipeline, now).sent)
    yield from _of_messages(case.expect, sent["messages"])
    yield from _of_fields(case, sent)
    yield from _of_identity(case, who)
    context = Context(now=now, tenant=_TENANT, session=who.session, user=who.user)
    if case.expect_answer is not None:
        yield from _of_answer(case.expect_answer, stream_filters.filter_text(answer, context, case.answer))


def _body(case: PipelineTest) -> bytes:
    body = {"model": _MODEL, **case.request, "messages": case.messages}
    return json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")


def _of_messages(
    expect: ExpectedMessages | Sequence[Any] | None, sent: Sequence[Mapping[str, Any]]
) -> Iterator[Failure]:
    if expect is None:
        return
    if not isinstance(expect, ExpectedMessages):
        if list(expect) != list(sent):
            yield Failure("messages", list(expect), sent)
        return
    missing = _first_missing(expect.contains, sent)
    if missing is not None:
        yield Failure("messages lack, in this order,", missing, sent)
    for wanted in expect.lacks:
        for message in sent:
            if _fits(wanted, message):
                yield Failure("messages contain", msgspec.UNSET, [message])


def _first_missing(wanted: Iterable[Any], sent: Iterable[Mapping[str, Any]]) -> Any:
    """The first that does not come behind those before it; ``None`` where all come."""
    rest = iter(sent)
    return next((each for each in wanted if not any(_fits(each, message) for message in rest)), None)


def _fits(wanted: Any, message: Mapping[str, Any]) -> bool:
    return all(name in message and message[name] == value for name, value in wanted.items())


def _of_fields(case: PipelineTest, sent: Mapping[str, Any]) -> Iterator[Failure]:
    for name, value in case.parameters.items():
        actual = sent.get(name, msgspec.UNSET)
        if actual != value:
            yield Failure(f"parameter {name}", value, actual)
    for name in case.absent:
        if name in sent:
            yield Failure(f"parameter {name}", msgspec.UNSET, sent[name])


def _of_identity(case: PipelineTest, who: Identity) -> Iterator[Failure]:
    named = case.model_fields_set
    if "session" in named and case.session != who.session:
        yield Failure("session", case.session, who.session)
    if "user" in named and case.user != who.user:
        yield Failure("user", case.user, who.user)


def _of_answer(expect: ExpectedAnswer | str, heard: str) -> Iterator[Failure]:
    if isinstance(expect, str):
        if heard != expect:
            yield Failure("answer", expect, heard)
        return
    for words in expect.contains:
        if words not in heard:
            yield Failure(f"answer lacks {words!r}", words, heard)
    for words in expect.lacks:
        if words in heard:
            yield Failure(f"answer contains {words!r}", msgspec.UNSET, heard)
