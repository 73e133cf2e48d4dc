"""What is wrong with a body, in words that say what to write; never in a library's, never with the value."""

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.errors import RequestError
from proxy.rest import agents, sessions, users
from proxy.rest.endpoint import validated

FACT = "text, category, replaces, importance, since, until"
EPISODE = "interaction_type, content, platform, metadata, ttl_hours"
MODELS = (
    agents.NewEpisode,
    agents.EpisodesQuery,
    users.FactChanges,
    users.NewFact,
    users.SearchQuery,
    sessions.SummaryOptions,
)
LIBRARYS = re.compile(r"input|valid|field|required|permitted|parse|deserializ", re.IGNORECASE)


def refused(model, written) -> tuple[str, str | None]:
    with pytest.raises(RequestError) as caught:
        validated(model, written if isinstance(written, bytes) else json.dumps(written).encode())
    return caught.value.message, caught.value.param


@pytest.mark.parametrize(
    ("model", "written", "said", "param"),
    [
        (users.NewFact, {}, f"'text' is missing; expected a string. The keys are: {FACT}.", "text"),
        (users.NewFact, {"text": "a", "foo": 1}, f"'foo': unknown key; available: {FACT}.", "foo"),
        (users.NewFact, {"text": "a", "": 1}, f"'': unknown key; available: {FACT}.", ""),
        (users.NewFact, {"text": 5}, "'text': expected a string.", "text"),
        (users.NewFact, {"text": None}, "'text': expected a string.", "text"),
        (users.NewFact, {"text": " "}, "'text': write a fact that is not blank.", "text"),
        (
            users.NewFact,
            {"text": "a" * 2001},
            "'text': expected a string of at most 2000 characters.",
            "text",
        ),
        (
            users.NewFact,
            {"text": "a", "category": "odd"},
            "'category': expected 'core', 'daily' or 'conversation'.",
            "category",
        ),
        (users.NewFact, {"text": "a", "importance": "x"}, "'importance': expected a number.", "importance"),
        (
            users.NewFact,
            {"text": "a", "importance": 2},
            "'importance': expected a number of at most 1.",
            "importance",
        ),
        (
            users.FactChanges,
            {"importance": -1},
            "'importance': expected a number of at least 0.",
            "importance",
        ),
        (
            users.FactChanges,
            {"replaces": "x"},
            "'replaces': unknown key; available: text, category, importance, since, until.",
            "replaces",
        ),
        (users.NewFact, [], f"Write an object as JSON; its keys are: {FACT}.", None),
        (users.NewFact, "text", f"Write an object as JSON; its keys are: {FACT}.", None),
        (users.NewFact, b"", f"The body is not JSON; write an object with the keys: {FACT}.", None),
        (users.NewFact, b'{"text": ', f"The body is not JSON; write an object with the keys: {FACT}.", None),
        (
            agents.NewEpisode,
            {"content": "a"},
            f"'interaction_type' is missing; expected a string. The keys are: {EPISODE}.",
            "interaction_type",
        ),
        (
            agents.NewEpisode,
            {"interaction_type": "", "content": "a"},
            "'interaction_type': expected a string of 1 or more characters.",
            "interaction_type",
        ),
        (
            agents.NewEpisode,
            {"interaction_type": "a", "content": "a", "metadata": []},
            "'metadata': expected an object.",
            "metadata",
        ),
        (
            agents.NewEpisode,
            {"interaction_type": "a", "content": "a", "ttl_hours": 0},
            "'ttl_hours': expected a number above 0.",
            "ttl_hours",
        ),
        (users.SearchQuery, {"query": "a", "user": []}, "'user': expected a string or an integer.", "user"),
        (users.SearchQuery, {"query": "a", "limit": 1.5}, "'limit': expected an integer.", "limit"),
        (sessions.SummaryOptions, {"messages": {}}, "'messages': expected an array.", "messages"),
        (sessions.SummaryOptions, {"messages": [{}, 5]}, "'messages.1': expected an object.", "messages.1"),
    ],
)
def test_what_is_wrong_is_said_with_what_to_write(model, written, said, param):
    assert refused(model, written) == (said, param)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.just("a secret thing"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.just("odd"), inner, max_size=1),
    max_leaves=5,
)


@given(st.data())
def test_no_library_speaks_and_no_value_is_shown(data):
    model = data.draw(st.sampled_from(MODELS))
    known = st.fixed_dictionaries({}, optional=dict.fromkeys((*model.model_fields, "other"), JSON))
    try:
        validated(model, json.dumps(data.draw(known | JSON)).encode())
    except RequestError as error:
        names = "|".join(sorted(model.model_fields))
        message = re.sub(names, "", error.message)
        assert LIBRARYS.search(message) is None, error.message
        assert "secret" not in message


def test_a_query_is_refused_in_the_same_words(serve, tmp_path: Path):
    proxy = serve(f"memory: {{sessions: 'sqlite:{tmp_path / 'm.db'}'}}\n{PLAIN}")
    for query, said in {
        "hours=x": "'hours': expected a number.",
        "limit=0": "'limit': expected a number of at least 1.",
        "limit=x": "'limit': expected an integer.",
        "foo=1": "'foo': unknown key; available: hours, limit.",
    }.items():
        got = proxy.client.get(f"/v1/memory/agents/a/episodes?{query}")
        assert (got.status_code, got.json()["error"]["message"]) == (400, said)


PLAIN = """
upstreams: {main: {base_url: "${UPSTREAM_BASE_URL:-practice:}"}}
pipelines: {default: {upstreams: [main], request: []}}
"""
