"""``check``, ``explain`` and ``test`` on the command line."""

import json
import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from proxy.cli import app
from proxy.settings.load import load

ROOT = Path(__file__).parents[2]
AGORA = str(ROOT / "config" / "agora.yaml")
DOCUMENTED = str(ROOT / "tests/golden/agora_doc_request.json")
DIALECTS = sorted((ROOT / "tests/golden/dialects").glob("*.json"))
UPSTREAM = "upstreams: {main: {base_url: 'practice:'}, spare: {base_url: 'practice:'}}\n"
BASE = UPSTREAM + "pipelines: {default: {upstreams: [main]}, other: {upstreams: [spare], model: big}}\n"
HI = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}


def run(*arguments, stdin=None):
    done = CliRunner().invoke(app, [str(each) for each in arguments], input=stdin)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    assert "Traceback" not in done.output
    return done


@pytest.fixture
def file(tmp_path):
    def written(text, name="c.yaml"):
        path = tmp_path / name
        path.write_text(text)
        return path

    return written


# --- explain


def test_an_explanation_in_a_pipe_is_plain_and_always_the_same():
    done = run("explain", AGORA, DOCUMENTED)
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout == (ROOT / "tests/golden/agora_doc_explained.txt").read_text()


def test_an_explanation_can_be_json():
    told = json.loads(run("explain", AGORA, DOCUMENTED, "--json").stdout)
    assert told["steps"][4]["filter"] == "restore_interrupted"
    assert told["steps"][4]["before"] != told["steps"][4]["after"]
    assert isinstance(told["steps"][4]["microseconds"], int)
    assert told["sent"].keys() == {"model", "messages"}


@pytest.mark.parametrize("golden", DIALECTS, ids=lambda path: path.stem)
def test_a_request_with_its_headers_and_its_path_is_explained(file, golden):
    wanted = json.loads(golden.read_text())["identity"]
    request = json.loads(golden.read_text())
    request["body"].setdefault("model", "m")
    told = json.loads(run("explain", AGORA, file(json.dumps(request), "r.json"), "--json").stdout)
    assert {name: told["whose"][name] for name in wanted} == wanted


def test_a_request_comes_from_stdin_with_headers_through_a_pipeline(file):
    config, header = file(BASE), "X-Session-Id:  s-1"
    done = run(
        "explain", config, "-", "--pipeline", "other", "--header", header, "--json", stdin=json.dumps(HI)
    )
    told = json.loads(done.stdout)
    assert (told["pipeline"], told["whose"]["session"], told["sent"]["model"]) == ("other", "s-1", "big")


def test_a_body_with_a_field_of_that_name_is_still_the_body(file):
    request = file(json.dumps({**HI, "body": {}, "headers": 7}), "r.json")
    assert run("explain", file(BASE), request).exit_code == 0


def test_a_header_of_the_command_goes_before_the_files(file):
    request = file(json.dumps({"headers": {"x-session-id": "a", "X-User-Id": "u"}, "body": HI}), "r.json")
    told = json.loads(run("explain", file(BASE), request, "--header", "X-Session-ID: b", "--json").stdout)
    assert (told["whose"]["session"], told["whose"]["user"]) == ("b", "u")


@pytest.mark.parametrize(
    ("request_", "options", "said"),
    [
        ("{", [], "The body is not JSON"),
        ("[]", [], "The body must be a JSON object"),
        ('{"model": "m"}', [], "'messages' is missing"),
        ('{"messages": []}', [], "'model' is missing"),
        ('{"body": {}, "headers": {"x": 1}}', [], "'headers' must be names and texts"),
        ('{"body": {}, "headers": []}', [], "'headers' must be names and texts"),
        ('{"body": {}, "path": 7}', [], "'path' must be a path"),
        ('{"body": {}, "path": "//["}', [], "'path' must be a path"),
        ('{"body": {}, "path": 1e999}', [], "'path' cannot be read"),
    ],
)
def test_a_wrong_request_is_told_in_a_line(file, request_, options, said):
    done = run("explain", file(BASE), file(request_, "r.json"), *options)
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.startswith(said)
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--pipeline", "none"], "no pipeline named 'none'; available: default, other\n"),
        (["--header", "x"], "Write a header as 'Name: value'.\n"),
        (["--header", "A: b", "--header", ": x"], "Write a header as 'Name: value'.\n"),
    ],
)
def test_an_option_that_is_written_wrongly_is_no_fault_of_the_request(file, options, said):
    done = run("explain", file(BASE), file(json.dumps(HI), "r.json"), *options)
    assert (done.exit_code, done.stdout, done.stderr) == (2, "", said)


def test_a_file_that_cannot_be_read_is_told_in_a_line(file, tmp_path):
    for request in (tmp_path / "none.json", tmp_path):
        done = run("explain", file(BASE), request)
        assert (done.exit_code, done.stderr.count("\n")) == (1, 1)
        assert "cannot be read" in done.stderr


def test_an_explanation_needs_no_way_to_the_model(monkeypatch):
    monkeypatch.setenv("UPSTREAM_BASE_URL", "https://api.example.com/v1")
    monkeypatch.setenv("HTTPS_PROXY", "::nonsense")
    assert run("explain", AGORA, DOCUMENTED).exit_code == 0


def test_a_request_beyond_the_limit_is_refused(file):
    config = file("listen: {max_body: 10B}\n" + BASE)
    done = run("explain", config, DOCUMENTED)
    assert (done.exit_code, "has more than 10 bytes" in done.stderr) == (1, True)


def test_a_wrong_configuration_is_told_fault_by_fault(file):
    for command in (("explain", file("x: 1\n" + BASE), DOCUMENTED), ("test", file("x: 1\n" + BASE))):
        done = run(*command)
        assert (done.exit_code, done.stdout) == (1, "")
        assert re.search(r"c\.yaml:1: x: unknown key 'x'", done.stderr)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
names = st.sampled_from(
    ["messages", "model", "metadata", "store", "functions", "function_call", "headers", "path", "body"]
)
parts = st.dictionaries(
    st.sampled_from(["role", "content", "tool_calls", "metadata", "timestamp", "x"]), json_values
)
requests = st.one_of(
    st.binary(max_size=60),
    json_values.map(json.dumps).map(str.encode),
    st.dictionaries(names, json_values | st.lists(parts, max_size=3)).map(json.dumps).map(str.encode),
    st.lists(st.builds(lambda part: {"role": "user", "content": "x", **part}, parts), max_size=3)
    .map(lambda messages: {"model": "m", "messages": messages})
    .map(json.dumps)
    .map(str.encode),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=150)
@given(request=requests, header=st.text(max_size=20), as_json=st.booleans())
def test_no_request_makes_an_explanation_fail(tmp_path, request, header, as_json):
    (tmp_path / "r.json").write_bytes(request)
    done = run("explain", AGORA, tmp_path / "r.json", f"--header={header}", *["--json"] * as_json)
    is_written = bool(header.partition(":")[0].strip()) and ":" in header
    assert done.exit_code in ({0, 1} if is_written else {2})


# --- check


def test_a_configuration_is_checked_from_stdin(file):
    done = run("check", "-", stdin=BASE)
    assert (done.exit_code, done.stdout) == (0, "-: ok\n")
    done = run("check", file(BASE), "-", stdin=BASE + "x: 1\n")
    assert done.exit_code == 1
    assert done.stdout.splitlines()[1].startswith("-:3: x: unknown key 'x'")
    doubtful = BASE.replace("spare: {base_url: 'practice:'}", "spare: {base_url: 'http://127.0.0.1'}")
    assert "-:1: upstreams.spare.base_url: warning: " in run("check", "-", stdin=doubtful).stdout
    assert run("check", "-", "--strict", stdin=doubtful).exit_code == 1


# --- test


CASES = BASE.replace(
    "{upstreams: [main]}",
    "{upstreams: [main], tests: [{name: one, messages: ['user: Hi'], expect: ['user: Hi']},"
    " {name: two, messages: ['user: Hi'], expect: ['user: Ho'], session: s, expect_answer: x}]}",
).replace(
    "model: big", "model: big, tests: [{name: three, messages: ['user: Hi'], parameters: {model: small}}]"
)
RESULTS = """\
{file}
  ✓ one
  ✗ two
      messages
      ~ [0] user
        - content: "Ho"
        + content: "Hi"
      session
        - expected: "s"
        + actual: null
      answer
        - expected: "x"
        + actual: ""
  ✗ other: three
      parameter model
        - expected: "small"
        + actual: "big"
1 passed, 2 failed
"""


def test_results_are_a_line_for_each_case_and_what_differs(file):
    config = file(CASES)
    done = run("test", config)
    assert (done.exit_code, done.stdout, done.stderr) == (1, RESULTS.format(file=config), "")


def test_missing_messages_are_shown_beside_those_that_came(file):
    case = "{name: x, messages: ['user: Hi'], expect: {contains: ['user: Ho'], lacks: [{role: user}]}}"
    done = run("test", file(BASE.replace("[main]", f"[main], tests: [{case}]")))
    assert done.stdout.splitlines()[2:] == [
        "      messages lack, in this order,",
        '      - user "Ho"',
        '        [0] user "Hi"',
        "      messages contain",
        '        + actual: [{"role":"user","content":"Hi"}]',
        "0 passed, 1 failed",
    ]


def test_results_can_be_json(file):
    config = file(CASES)
    rows = json.loads(run("test", config, "--json").stdout)
    assert [(row["pipeline"], row["name"], len(row["failures"])) for row in rows] == [
        ("default", "one", 0),
        ("default", "two", 3),
        ("other", "three", 1),
    ]
    assert rows[2]["failures"] == [{"what": "parameter model", "expected": "small", "actual": "big"}]
    assert {row["file"] for row in rows} == {str(config)}


def test_a_configuration_without_cases_says_so_and_passes(file):
    done = run("test", file(BASE), AGORA)
    assert done.exit_code == 0
    assert "warning: no cases; write some under 'pipelines.NAME.tests'" in done.stdout
    assert done.stdout.endswith(" passed\n")


# --- check


DOUBTFUL = BASE.replace("model: big", "request: [restore_interrupted, restore_interrupted]")


def test_a_warning_is_told_and_passes_unless_it_may_not(file):
    config = file(DOUBTFUL)
    done = run("check", config)
    assert (done.exit_code, done.stderr) == (0, "")
    warning, verdict = done.stdout.splitlines()
    assert warning.startswith(f"{config}:2: pipelines.other.request.2: warning: duplicate step")
    assert verdict == f"{config}: ok"
    assert run("check", config, "--strict").exit_code == 1
    assert run("check", AGORA, "--strict").exit_code == 0


def test_sessions_outside_of_sql_have_no_archive_and_check_says_so(monkeypatch):
    monkeypatch.setenv("MEMORY_URL", "redis://127.0.0.1:6379/0")
    done = run("check", AGORA, "--strict")
    assert done.exit_code == 0, "it may be meant"
    verdict, note = done.stdout.splitlines()
    assert verdict == f"{AGORA}: ok"
    assert note.startswith("  no archive: sessions are not kept in SQL; set ARCHIVE_URL")
    monkeypatch.setenv("ARCHIVE_URL", "sqlite:archive.db")
    assert run("check", AGORA).stdout.splitlines() == [verdict]


def test_faults_and_warnings_can_be_json(file):
    doubtful, wrong = file(DOUBTFUL), file("x: 1\n" + BASE, "d.yaml")
    done = run("check", doubtful, wrong, "--json")
    assert done.exit_code == 1
    assert [(row["file"], row["line"], row["severity"]) for row in json.loads(done.stdout)] == [
        (str(wrong), 1, "error"),
        (str(doubtful), 2, "warning"),
    ]


# --- what the pages and the help say


@pytest.mark.parametrize("command", ["check", "explain", "test"])
def test_the_help_tells_the_exit_codes(command):
    said = " ".join(run(command, "--help").stdout.split())
    assert re.search(r"Exit code: 0 .+, 1 .+, 2 usage error\.", said)


@pytest.mark.parametrize("arguments", [["explain", AGORA], ["test"], ["check", "--strct", AGORA]])
def test_a_command_that_is_written_wrongly_is_2(arguments):
    assert run(*arguments).exit_code == 2


def test_the_cases_of_the_docs_hold(file):
    text = (ROOT / "docs" / "trying.md").read_text()
    (config,) = re.findall(r"^```yaml\n(upstreams:.+?)^```", text, re.MULTILINE | re.DOTALL)
    done = run("test", file(config))
    assert (done.exit_code, done.stdout.splitlines()[-1]) == (0, "1 passed")


def test_serving_reads_cases_and_needs_them_in_form(file):
    assert load(file(CASES), {}).pipelines["default"].tests[0].name == "one"
