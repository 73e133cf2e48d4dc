import json

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from proxy.settings.build_pipelines import build_pipelines
from proxy.settings.load import load
from proxy.trial import explain, render
from proxy.trial.testing import Failure, Result
from proxy.turn.turn import RawRequest

CONFIG = """
upstreams: {main: {base_url: "http://127.0.0.1:9/v1"}}
pipelines: {default: {upstreams: [main], request: [merge_consecutive]}}
"""


@given(st.text())
def test_nothing_that_a_terminal_would_act_on_comes_through(text):
    shown = render.plain([render.line(text)])
    assert not [c for c in shown[:-1] if ord(c) < 32 or 127 <= ord(c) < 160 or 0xD800 <= ord(c) < 0xE000]
    assert shown.count("\n") == 1


def explained(tmp_path, *, remembers=False, timed=False):
    """Returns the explanation of a call, as text."""
    path = tmp_path / "explained.yaml"
    path.write_text(CONFIG)
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "Hi"}]}).encode()
    request = RawRequest(headers={}, query={}, body=body, tenant="acme")
    pipeline = build_pipelines(load(path, {}))["default"]
    return render.plain(
        render.render_explanation(
            explain.explain_request(request, pipeline, 0.0, remembers=remembers), timed=timed
        )
    )


def test_memory_is_said_to_be_left_out_where_there_is_some(tmp_path):
    assert "memory:" not in explained(tmp_path)
    assert "memory: left out, and its tools" in explained(tmp_path, remembers=True)


def test_a_filter_has_its_time_where_that_is_asked_for(tmp_path):
    assert " µs)" in explained(tmp_path, timed=True)
    assert " µs)" not in explained(tmp_path)


def results(*failures):
    return render.plain(render.render_results({"a.yaml": [Result("default", "one", failures)]}))


def test_what_should_not_be_there_is_shown_alone():
    message = {"role": "user", "content": "Hi"}
    text = results(Failure("messages contain", msgspec.UNSET, [message]))
    assert text.splitlines()[2:4] == [
        "      messages contain",
        '        + actual: [{"role":"user","content":"Hi"}]',
    ]


def test_a_parameter_that_is_no_object_is_shown_beside_the_object_that_was_expected():
    text = results(Failure("parameter stop", {"a": 1}, "b"))
    assert text.splitlines()[2:5] == [
        "      parameter stop",
        '        - expected: {"a":1}',
        '        + actual: "b"',
    ]


def test_a_file_without_cases_alone_is_warned_about():
    assert "warning" not in results()
    assert "  warning: no cases" in render.plain(render.render_results({"a.yaml": []}))
