import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from filters.base import RequestFilter
from proxy.errors import RequestError, TurnkeeperError
from proxy.settings.build_pipelines import build_pipelines
from proxy.settings.load import load
from proxy.trial import explain
from proxy.turn.turn import RawRequest
from tests.bodies import SECRET, bodies, conversations
from tests.ready import UPSTREAM, pipeline_of

ROOT = Path(__file__).parents[3]
NOW = 1678909999.0
PIPELINES = build_pipelines(load(ROOT / "config" / "agora.yaml", {}))
AGORA = PIPELINES["default"]
DOCUMENTED = json.loads((ROOT / "tests/golden/agora_doc_request.json").read_text())


class Broken(RequestFilter):
    def apply(self, messages, context):
        raise ValueError(messages[0].text)


class Setting(RequestFilter):
    def set(self, fields, context):
        return {**fields, "temperature": msgspec.Raw(b"0.5"), "mine": msgspec.Raw(b'"abc"')}


class Copying(RequestFilter):
    def apply(self, messages, context):
        return list(messages)


def explained(body, pipeline=AGORA, headers=None, query=None):
    data = json.dumps(body).encode()
    request = RawRequest(headers=headers or {}, query=query or {}, body=data, tenant="acme")
    return explain.explain_request(request, pipeline, NOW)


def with_filters(*filters):
    return msgspec.structs.replace(AGORA, filters=filters)


def test_each_filter_is_told_with_what_it_changed():
    steps = explained(DOCUMENTED).steps
    assert [(step.filter, step.changed) for step in steps] == [
        ("repair_history", False),
        ("restore_history", False),
        ("inject_summaries", False),
        ("drop_messages", False),
        ("restore_interrupted", True),
        ("inject_facts", False),
        ("inject_last_call", False),
    ]
    before, after = steps[4].before, steps[4].after
    assert [i for i, (a, b) in enumerate(zip(before, after, strict=True)) if a != b] == [2]
    assert before[2]["content"] == "Why did the scarecrow "
    assert steps[3].options == {"sources": ["silence", "llm_failure"]}
    assert steps[0].before is msgspec.UNSET
    assert all(step.microseconds >= 0 for step in steps)


def test_whose_turn_it_is_comes_with_the_place_that_said_so():
    whose = explained({**DOCUMENTED, "channel": "room-1"}, query={"user_id": "ann"}).identity
    assert (whose.tenant, whose.session, whose.session_from) == ("acme", "room-1", "body:channel")
    assert (whose.user, whose.user_from, whose.background) == ("ann", "query:user_id", False)


def test_nobody_comes_from_nowhere():
    whose = explained({"model": "m", "messages": [{"role": "user", "content": "Hi"}]}).identity
    assert (whose.session, whose.session_from, whose.user, whose.user_from) == (None, None, None, None)


def test_a_default_session_is_told_as_such(tmp_path):
    config = UPSTREAM + "pipelines: {default: {upstreams: [main], identity: {default_session: all}}}"
    whose = explained(DOCUMENTED, pipeline_of(tmp_path / "c.yaml", config)).identity
    assert (whose.session, whose.session_from) == ("all", "default_session")


def test_bad_extensions_are_named():
    message = {"role": "user", "content": "Hi", "timestamp": "noon"}
    assert explained({"model": "m", "messages": [message]}).ignored == ("messages[0].timestamp",)


def test_an_id_of_no_use_is_named():
    asked = {"model": "m", "user": {"name": "ann"}, "messages": [{"role": "user", "content": "Hi"}]}
    assert explained(asked).ignored == ("body:user",)


def test_fields_that_a_filter_sets_are_told_and_hidden_as_any_other():
    step = explained(DOCUMENTED, with_filters(Setting())).steps[0]
    changes = {each.name: each.after for each in step.fields}
    assert step.changed
    assert changes == {"temperature": msgspec.Raw(b"0.5"), "mine": "(not shown: text of 3 characters)"}
    assert {each.before for each in step.fields} == {msgspec.UNSET}


def test_a_copy_of_the_same_is_no_change():
    assert not explained(DOCUMENTED, with_filters(Copying())).steps[0].changed


def test_what_the_configuration_alone_lets_through_is_sent_and_hidden(tmp_path):
    config = (
        "upstreams: {main: {base_url: 'practice:', accepts: any, allow: [extra]}}\n"
        "pipelines: {default: {upstreams: [main]}}"
    )
    told = explained({**DOCUMENTED, "extra": SECRET}, pipeline_of(tmp_path / "c.yaml", config))
    assert told.sent["extra"] == f"(not shown: text of {len(SECRET)} characters)"
    assert "extra" not in {each.name for each in told.stripped}


def test_the_destination_is_told():
    to = explained(DOCUMENTED).destination
    assert (to.upstream, to.kind, to.model) == ("main", "openai", "xxxx")


def test_a_filter_that_fails_is_named_without_what_it_said():
    with pytest.raises(TurnkeeperError) as caught:
        explained({"model": "m", "messages": [{"role": "user", "content": SECRET}]}, with_filters(Broken()))
    assert "'test_explain' failed with ValueError at test_explain.py:" in caught.value.message
    assert SECRET not in caught.value.message


@pytest.mark.parametrize(
    "body", [{}, {"messages": 1, "model": "m"}, {"messages": []}, {"messages": [], "model": ""}]
)
def test_what_a_turn_would_refuse_is_refused(body):
    with pytest.raises(RequestError):
        explained(body)


@given(bodies(), conversations())
def test_no_value_is_told_that_nobody_named(body, messages):
    told = explained({"model": "m", **body, "messages": messages})
    assert SECRET not in msgspec.json.encode(told).decode()


@given(bodies(), conversations())
def test_a_call_is_left_as_it_was(body, messages):
    told = explained({"model": "m", **body, "messages": messages})
    again = explained({"model": "m", **body, "messages": messages})
    timeless = [[msgspec.structs.replace(s, microseconds=0) for s in each.steps] for each in (told, again)]
    assert timeless[0] == timeless[1]
    assert (told.sent, told.stripped, told.messages) == (again.sent, again.stripped, again.messages)


@given(
    st.sampled_from([1e308, 10**400, -(10**30), "\ud83d", 2**64, 0.1]), st.sampled_from(sorted(DOCUMENTED))
)
def test_odd_values_are_explained_or_refused(value, name):
    body = {**DOCUMENTED, name: value} if name != "messages" else {"messages": [{"role": "user", "x": value}]}
    try:
        msgspec.json.encode(explained(body))
    except RequestError:
        assert name in {"messages", "model"}
