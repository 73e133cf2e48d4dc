import pytest

from filters.base import RequestFilter
from proxy.settings import checks
from proxy.settings.filter_registry import FilterRegistry
from proxy.settings.load import check_config
from tests.ready import UPSTREAM

REMOTE = "base_url: 'https://api.example.com/v1'"
SOUND = """\
upstreams:
  main: {base_url: 'https://api.example.com/v1', api_key: sk}
pipelines:
  default:
    upstreams: [main]
    request:
      - repair_history
      - drop_messages: {sources: [silence]}
      - drop_messages: {sources: [llm_failure]}
      - restore_interrupted
      - user_context
      - timestamp_prefix: {roles: [user, assistant]}
      - merge_consecutive
"""
# Filters of the design that are not built yet; once one is, it is found by its module.
PLANNED = {
    "restore_history",
    "inject_summaries",
    "rewrite",
    "redact",
    "system_prompt",
    "inject_facts",
    "inject_episodes",
    "recall",
    "trim_history",
}


@pytest.fixture
def warnings_for(tmp_path):
    """The warnings for a text, as ``line: path: message``."""

    def read(text):
        file = tmp_path / "c.yaml"
        file.write_text(text)
        assert check_config(file, {}).errors == []
        return [str(found).removeprefix(f"{file}:") for found in check_config(file, {}).warnings]

    return read


def test_a_sound_file_has_no_warnings(warnings_for):
    assert warnings_for(SOUND) == []


def test_a_file_with_faults_has_no_warnings_as_well(tmp_path):
    for text in ("x: 1", "upstreams: ["):
        (tmp_path / "c.yaml").write_text(text)
        assert check_config(tmp_path / "c.yaml", {}).warnings == []


def upstream(options):
    return f"upstreams:\n  main: {{{options}}}\npipelines: {{default: {{upstreams: [main]}}}}"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (REMOTE, "api_key: warning: no key is sent to an upstream on another machine; set api_key"),
        (
            "base_url: 'http://10.0.0.1/v1', api_key: sk",
            "base_url: warning: a key is sent to another machine without",
        ),
        (
            "base_url: 'http://10.0.0.1/v1', forward_key: true",
            "base_url: warning: a key is sent to another machine",
        ),
        (
            "base_url: 'https://api.example.com', api_key: sk",
            "base_url: warning: this address has no path, and most models are under /v1",
        ),
        (
            "base_url: 'https://api.example.com/', api_key: sk",
            "base_url: warning: this address has no path",
        ),
        ("base_url: 'HTTP://127.0.0.1:8000'", "base_url: warning: this address has no path"),
        (
            "base_url: 'https://api.groq.com/openai/v1', api_key: sk",
            "accepts: warning: this vendor does not accept all of OpenAI's fields; write groq",
        ),
        ("base_url: 'https://API.Mistral.ai/v1', api_key: sk", "accepts: warning: this vendor does not"),
        (f"{REMOTE}, api_key: $OPENAI_API_KEY", "api_key: warning: without braces this is text"),
        ("base_url: 'http://127.0.0.1:11434/v1'", "accepts: warning: this vendor"),
        (
            "base_url: 'https://r.openai.azure.com/openai/deployments/d', api_key: sk, accepts: azure",
            "base_url: warning: Azure has OpenAI's chat completions under /openai/v1",
        ),
        (
            "base_url: 'practice:', first_token: 60s",
            "first_token: warning: 'total' ends a request before this",
        ),
        (
            "base_url: 'practice:', first_token: 2m",
            "first_token: warning: 'total' ends a request before this",
        ),
    ],
)
def test_an_upstream_that_cannot_be_meant_so_is_told(warnings_for, options, said):
    found = warnings_for(upstream(options))
    assert len(found) == 1
    assert found[0].startswith(f"2: upstreams.main.{said}")


@pytest.mark.parametrize(
    "options",
    [
        "base_url: 'practice:'",
        "base_url: 'http://127.0.0.1:8000/v1'",
        "base_url: 'http://localhost:8000/v1', api_key: sk",
        "base_url: 'http://[::1]:8000/v1'",
        f"{REMOTE}, api_key: sk",
        "base_url: 'https://api.example.com/openai/', api_key: sk",
        f"{REMOTE}, forward_key: true",
        f"{REMOTE}, headers: {{X-Api-Key: sk}}",
        f"{REMOTE}, api_key: sk, first_token: 59s",
        "base_url: 'https://api.groq.com/openai/v1', api_key: sk, accepts: groq",
        "base_url: 'https://api.groq.com/openai/v1', api_key: sk, accepts: any",
        "base_url: 'http://127.0.0.1:11434/v1', accepts: ollama",
        "base_url: 'https://r.openai.azure.com/openai/v1', api_key: sk",
        "base_url: 'https://r.openai.azure.com/openai/v1/', api_key: sk, accepts: azure",
    ],
)
def test_an_upstream_that_can_be_meant_so_is_not(warnings_for, options):
    assert warnings_for(upstream(options)) == []


def test_what_helps_recall_may_be_at_the_root_of_a_host(warnings_for):
    text = """\
memory: {sessions: 'sqlite:a.db', recall: {rerank: {upstream: order}}}
upstreams: {main: {base_url: 'practice:'}, order: {base_url: 'http://127.0.0.1:8001'}}
pipelines: {default: {upstreams: [main]}}
"""
    assert warnings_for(text) == []
    asked = warnings_for(text.replace("recall:", "summaries: {upstream: order}, recall:"))
    assert [said for said in asked if "base_url: warning: this address has no path" in said] != []


def test_an_upstream_that_nobody_uses_is_told(warnings_for):
    text = SOUND.replace("pipelines:\n", "  spare: {base_url: 'practice:'}\npipelines:\n")
    assert warnings_for(text) == [
        "3: upstreams.spare: warning: no pipeline uses this upstream; name it in one, or take it out"
    ]


def test_an_upstream_that_is_named_twice_is_told(warnings_for):
    (found,) = warnings_for(SOUND.replace("[main]", "[main, main]"))
    assert found.startswith("5: pipelines.default.upstreams.2: warning: this upstream is listed twice")


def test_a_hedge_needs_an_upstream_more_and_the_same_will_do(warnings_for):
    hedged = SOUND.replace("    upstreams:", "    hedge: 800ms\n    upstreams:")
    (found,) = warnings_for(hedged)
    assert found.startswith("5: pipelines.default.hedge: warning: there is no second upstream;")
    assert warnings_for(hedged.replace("[main]", "[main, main]")) == []


def steps(*written):
    """A configuration with these steps, and with memory and an archive for those that tell of them."""
    head = f"{UPSTREAM}pipelines:\n  default:\n    upstreams: [main]\n    request:\n"
    return head + "".join(f"      - {step}\n" for step in written) + "memory: {sessions: 'sqlite:a.db'}\n"


def test_the_same_step_twice_is_told_once(warnings_for):
    drop = "drop_messages: {sources: [silence]}"
    assert warnings_for(steps(drop, drop)) == [
        "7: pipelines.default.request.2: warning: duplicate step with the same options; keep one"
    ]
    assert warnings_for(steps(drop, "drop_messages: {sources: [llm_failure]}")) == []


GONE = "an earlier step drops every message that this works on"


@pytest.mark.parametrize(
    "written",
    [
        ("drop_messages: {sources: [silence, command]}", "drop_messages: {sources: [silence]}"),
        ("drop_messages: {sources: [silence]}", "drop_messages: {sources: [silence], roles: [assistant]}"),
        (
            "drop_messages: {sources: [silence]}",
            "drop_messages: {sources: [command]}",
            "drop_messages: {sources: [silence, command]}",
        ),
        ("drop_messages: {sources: [command]}", "drop_messages: {sources: [command], roles: [user]}"),
        ("drop_messages: {roles: [tool]}", "user_context: {template: '{role}', roles: [tool]}"),
        (
            "drop_messages: {sources: [greeting]}",
            "timestamp_prefix: {roles: [assistant], sources: [greeting]}",
        ),
    ],
)
def test_a_step_that_finds_nothing_left_is_told(warnings_for, written):
    (found,) = warnings_for(steps(*written))
    assert found.startswith(f"{5 + len(written)}: ")
    assert GONE in found


@pytest.mark.parametrize(
    "written",
    [
        ("drop_messages: {sources: [silence]}", "drop_messages: {sources: [silence, command]}"),
        ("drop_messages: {sources: [silence], roles: [assistant]}", "drop_messages: {sources: [silence]}"),
        ("drop_messages: {sources: [silence]}", "drop_messages: {roles: [tool]}"),
        ("timestamp_prefix: {sources: [asr]}", "drop_messages: {sources: [asr]}"),
        # The newest message of the user stays, and gets its prefix.
        ("drop_messages: {sources: [command]}", "timestamp_prefix: {sources: [command]}"),
        ("drop_messages: {roles: [user]}", "user_context"),
    ],
)
def test_a_step_that_finds_something_left_is_not(warnings_for, written):
    assert warnings_for(steps(*written)) == []


def test_a_step_whose_options_leave_it_nothing_to_do_is_told(warnings_for):
    (found,) = warnings_for(steps("restore_interrupted: {show: heard}"))
    assert "6: pipelines.default.request.1: warning: with 'show: heard' this changes nothing" in found
    assert warnings_for(steps("restore_interrupted")) == []


def test_repair_history_takes_null_fields_out_whatever_its_options_are(warnings_for):
    assert (
        warnings_for(steps("repair_history: {tools: false, empty: false, repeated: false, control: []}"))
        == []
    )


def test_a_step_that_switches_off_some_of_what_it_does_is_not_told(warnings_for):
    for kept in ("tools", "empty", "repeated"):
        off = ", ".join(f"{name}: false" for name in ("tools", "empty", "repeated") if name != kept)
        assert warnings_for(steps(f"repair_history: {{{off}, control: []}}")) == []
    assert warnings_for(steps("repair_history: {tools: false, empty: false, repeated: false}")) == []


HERE = set(FilterRegistry().names(RequestFilter))
OPTIONS = {
    "drop_messages": "drop_messages: {sources: [silence]}",
    "trim_history": "trim_history: {max_tokens: 8000}",
    "rewrite": "rewrite: {replace: [{pattern: a, with: b}], roles: [assistant]}",
    "system_prompt": "system_prompt: {text: Be brief.}",
    "set_parameters": "set_parameters: {set: {temperature: 0}}",
}
OPTIONS |= {name: f"{name}: {{roles: [user, assistant]}}" for name in ("timestamp_prefix", "user_context")}


@pytest.mark.parametrize(
    ("repair", "restore", "option"),
    [
        ("unanswered: drop", "", "unanswered"),
        ("", "unanswered: drop", "unanswered"),
        ("stub: Gone.", "", "stub"),
        ("stub: Gone.", "stub: Nothing.", "stub"),
        ("unanswered: drop", "stub: Nothing.", "unanswered"),
    ],
)
def test_two_steps_that_close_calls_otherwise_are_named(warnings_for, repair: str, restore: str, option: str):
    given = [
        f"{name}: {{{options}}}"
        for name, options in (("repair_history", repair), ("restore_history", restore))
    ]
    (said,) = [line for line in warnings_for(steps(*given)) if "repair_history" in line]
    assert f"give this the same '{option}' as repair_history" in said
    assert "request.2" in said


@pytest.mark.parametrize(
    ("repair", "restore"),
    [
        ("", ""),
        ("stub: Gone.", "stub: Gone."),
        ("unanswered: drop", "unanswered: drop"),
        ("unanswered: drop, stub: Gone.", "unanswered: drop"),
        ("tools: false, unanswered: drop", ""),
    ],
)
def test_two_steps_that_close_calls_alike_are_not(warnings_for, repair: str, restore: str):
    given = [
        f"{name}: {{{options}}}"
        for name, options in (("repair_history", repair), ("restore_history", restore))
    ]
    assert [line for line in warnings_for(steps(*given)) if "the same" in line] == []


orders_here = [rule for rule in checks.ORDERS if {rule.first, rule.then} <= HERE]


@pytest.mark.parametrize("rule", orders_here, ids=lambda rule: f"{rule.first}-{rule.then}")
def test_an_order_that_defeats_a_filter_is_told(warnings_for, rule):
    first, then = (OPTIONS.get(name, name) for name in (rule.first, rule.then))
    found, fine = warnings_for(steps(then, first)), warnings_for(steps(first, then))
    assert found == [f"6: pipelines.default.request.1: warning: put this after {rule.first}: {rule.why}"]
    assert fine == []


def test_prefixes_of_the_user_alone_do_not_hide_answers(warnings_for):
    assert warnings_for(steps("timestamp_prefix", "user_context", "restore_interrupted")) == []
    assert warnings_for(steps("restore_interrupted: {show: both}", "repair_history")) != []


def test_words_of_the_user_may_be_rewritten_before_answers_are_restored(warnings_for):
    assert warnings_for(steps("rewrite: {replace: [{pattern: a, with: b}]}", "restore_interrupted")) == []


class Named(RequestFilter):
    """A filter that pretends to be one of another module."""


def pretending(*written):
    return [type(name, (Named,), {"__module__": f"filters.{name}"})() for name in written]


@pytest.mark.parametrize("rule", checks.ORDERS, ids=lambda rule: f"{rule.first}-{rule.then}")
def test_each_order_is_told_of_filters_that_do_not_exist_yet(rule):
    wrong, right = pretending(rule.then, rule.first), pretending(rule.first, rule.then)
    conditional = rule.when(wrong[0])
    needs = [message for _, message in checks.order_warnings(right)]
    said = [message for _, message in checks.order_warnings(wrong) if message not in needs]
    assert said == ([f"put this after {rule.first}: {rule.why}"] if conditional else [])


def test_a_filter_that_does_harm_alone_is_told():
    alone = list(checks.order_warnings(pretending("restore_history")))
    assert [i for i, _ in alone] == [0]
    assert alone[0][1].startswith("add inject_summaries: ")
    assert not list(checks.order_warnings(pretending("restore_history", "inject_summaries")))


def test_summaries_are_not_to_be_injected_where_there_are_none():
    assert not list(checks.order_warnings(pretending("restore_history"), summarising=False))


def test_rules_name_filters_that_exist_or_are_planned():
    named = {name for rule in checks.ORDERS for name in (rule.first, rule.then)}
    assert named <= HERE | PLANNED


def test_no_two_rules_contradict_one_another():
    pairs = {(rule.first, rule.then) for rule in checks.ORDERS}
    assert len(pairs) == len(checks.ORDERS)
    assert not {(then, first) for first, then in pairs} & pairs


@pytest.mark.parametrize(
    ("wants", "is_told"),
    [
        ("", True),
        (", headers: {A: b}, request: {temperature: 1}, answer: x", True),
        (", expect: {}", True),
        (", absent: [], parameters: {}", True),
        (", expect: []", False),
        (", expect: {lacks: ['assistant: a']}", False),
        (", session: ~", False),
        (", user: ann", False),
        (", absent: [a]", False),
        (", parameters: {a: 1}", False),
        (", answer: x, expect_answer: x", False),
    ],
)
def test_a_case_that_holds_whatever_comes_is_told(warnings_for, wants, is_told):
    case = f"    tests:\n      - {{name: a, messages: ['user: Hi']{wants}}}\nmemory:"
    found = warnings_for(steps("repair_history").replace("memory:", case))
    said = "8: pipelines.default.tests.1: warning: this case can never fail; add what must hold"
    assert [line[: len(said)] for line in found] == [said] * is_told


def test_no_warning_shows_a_secret(warnings_for):
    text = upstream("base_url: 'http://s3cret.example.com/v1', api_key: s3cret, headers: {X-Key: s3cret}")
    assert warnings_for(text)
    assert "s3cret" not in str(warnings_for(text))
