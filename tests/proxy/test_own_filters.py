"""Users' own filters from files: how they are found, reloaded, and reported if they fail."""

import json
import os
import subprocess
import sys

import pytest

from filters.base import AnswerFilter, Context, RequestFilter
from proxy.describe.schema import model_schema
from proxy.errors import ConfigError, TurnkeeperError
from proxy.settings.build_pipelines import build_pipelines
from proxy.settings.load import check_config, load
from proxy.trial import explain
from proxy.turn.turn import RawRequest
from tests.conversations import messages_of

ENVIRON = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
SOUND = (
    "upstreams: {main: {base_url: 'practice:'}}\npipelines: {default: {upstreams: [main], request: [%s]}}\n"
)
POLITE = """
from filters.base import RequestFilter

class Polite(RequestFilter):
    word: str = "please"

    def apply(self, messages, context):
        return [m.saying(f"{m.text}, {self.word}") if m.role == "user" else m for m in messages]
"""


@pytest.fixture
def write(tmp_path):
    """Writes a configuration that names ``files``, with one step; the Python beside it."""

    def written(step="polite", files="[polite.py]", **sources):
        for name, source in sources.items():
            (tmp_path / f"{name}.py").write_text(source)
        config = tmp_path / "c.yaml"
        config.write_text(f"filters: {files}\n" + SOUND % step)
        return config

    return written


@pytest.fixture
def errors_for(write):
    def read(environ=None, **written):
        config = write(**written)
        return [str(fault).removeprefix(f"{config}:") for fault in check_config(config, environ or {}).errors]

    return read


def said_by(config):
    (step,) = load(config, {}).pipelines["default"].request
    (said,) = step.apply(messages_of([{"role": "user", "content": "Wait"}]), Context(now=0))
    return said.content


def test_adding_a_filter_takes_one_file_and_one_line(write, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    assert said_by(write(polite=POLITE)) == "Wait, please"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c.yaml", "polite.py"]


def test_it_takes_options_as_any_other(write):
    assert said_by(write("polite: {word: now}", polite=POLITE)) == "Wait, now"


def test_a_file_stands_where_the_configuration_says(write, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "polite.py").write_text(POLITE)
    assert said_by(write(files="[mine/polite.py]")) == "Wait, please"
    assert said_by(write(files=f"['{tmp_path}/mine/polite.py']")) == "Wait, please"


def test_an_edit_counts_at_the_next_load_and_old_settings_stay(write, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    config = write(polite=POLITE)
    before = load(config, {}).pipelines["default"].request[0]
    write(polite=POLITE.replace("please", "sorry!"[:6]))  # as long as before, and within one second
    assert said_by(config) == "Wait, sorry!"
    assert before.apply(messages_of([{"role": "user", "content": "Wait"}]), None)[0].content == "Wait, please"


def test_a_broken_edit_leaves_what_was_loaded_alone(write):
    config = write(polite=POLITE)
    before = load(config, {}).pipelines["default"].request[0]
    write(polite="class")
    with pytest.raises(ConfigError):
        load(config, {})
    assert sys.modules[type(before).__module__].Polite is type(before)


def test_a_users_module_takes_no_name_that_others_import(write):
    before = set(sys.modules)
    load(write(polite=POLITE), {})
    assert {name.partition("_")[0] for name in set(sys.modules) - before} <= {"turnkeeper"}


def test_options_help_and_late_annotations_are_read_as_in_shipped_filters(write):
    source = "from __future__ import annotations\n" + POLITE.replace(
        '"please"', '"please"\n    """What is added."""'
    )
    for _ in range(2):
        step = load(write(polite=source), {}).pipelines["default"].request[0]
        assert model_schema(type(step))["properties"]["word"]["description"] == "What is added."


def test_one_file_may_work_on_both_sides(write, tmp_path):
    both = POLITE + "\nfrom filters.base import AnswerFilter\n\nclass PoliteAnswer(AnswerFilter):\n"
    both += "    def first(self, context):\n        return None\n"
    config = write(polite=both)
    config.write_text(config.read_text().replace("request: [polite]", "request: [polite], answer: [polite]"))
    pipeline = load(config, {}).pipelines["default"]
    assert isinstance(pipeline.request[0], RequestFilter)
    assert isinstance(pipeline.answer[0], AnswerFilter)


def test_only_filters_that_are_named_are_imported(write):
    config = write("polite, drop_messages: {sources: [a]}", polite=POLITE)
    code = (
        "import sys; from pathlib import Path; from proxy.settings.load import load; "
        f"load(Path({str(config)!r}), {{}}); print(*(name for name in sys.modules if 'filters.' in name))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=True, text=True, env=ENVIRON
    )
    assert "filters.drop_messages" in done.stdout.split()
    assert "filters.redact" not in done.stdout.split()


def test_packages_are_not_looked_for_while_names_are_known(write, monkeypatch):
    def looked(*args, **kwargs):
        raise AssertionError("looked for installed packages")

    monkeypatch.setattr("proxy.settings.filter_registry.entry_points", looked)
    load(write(step="polite, drop_messages: {sources: [a]}", polite=POLITE), {})


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ({}, ["1: filters.1: the file cannot be read: No such file or directory: /"]),
        ({"files": "[.]", "step": ""}, ["1: filters.1: name the file as the filter, such as"]),
        ({"files": "[Polite.py]", "step": ""}, ["1: filters.1: name the file as the filter, such as"]),
        ({"files": "[base.txt]", "step": ""}, ["1: filters.1: name the file as the filter, such as"]),
        ({"files": "['a\\0.py']", "step": ""}, ["1: filters.1: name the file as the filter, such as"]),
        (
            {"files": '["x\\0/polite.py"]', "step": ""},
            ["1: filters.1: the file cannot be loaded: ValueError"],
        ),
        ({"files": "polite.py", "step": ""}, ["1: filters: expected a list"]),
        ({"files": "[4]", "step": ""}, ["1: filters.1: expected a string"]),
        ({"files": "['${NONE}']", "step": ""}, ["1: filters.1: the environment has no NONE"]),
        (
            {"polite": "x = 1\nclass\n"},
            ["1: filters.1: the file cannot be loaded: line 2: SyntaxError: "],
        ),
        ({"polite": "\0"}, ["1: filters.1: the file cannot be loaded: SyntaxError: "]),
        (
            {"polite": "a = 1\nimport nonesuch\n"},
            ["1: filters.1: the file cannot be loaded: line 2: Module"],
        ),
        (
            {"polite": "a = 1\n1 / 0\n"},
            ["1: filters.1: the file cannot be loaded: line 2: ZeroDivision"],
        ),
        (
            {"polite": "import sys\nsys.exit()\n"},
            ["1: filters.1: the file cannot be loaded: line 2: SystemExit"],
        ),
        (
            {"polite": "open('none')"},
            ["1: filters.1: the file cannot be loaded: line 1: FileNotFoundError: "],
        ),
        ({"polite": ""}, ["1: filters.1: this file defines no filter; write a class"]),
        (
            {"polite": "from filters.base import RequestFilter"},
            ["1: filters.1: this file defines no filter"],
        ),
        (
            {"polite": POLITE.replace("word: str", "word: object()")},
            ["1: filters.1: the file cannot be loaded: line 4: Pydantic"],
        ),
        (
            {"files": "[polite.py, drop_messages.py]", "polite": POLITE, "drop_messages": POLITE},
            ["1: filters.2: a filter of this name is shipped; rename the file"],
        ),
        (
            {"files": "[polite.py, ./polite.py]", "polite": POLITE},
            ["1: filters.2: another file here has this name already; rename one"],
        ),
        (
            {"polite": POLITE, "step": "polit"},
            ["3: pipelines.default.request.1: no filter named 'polit'; did you mean"],
        ),
        (
            {"polite": POLITE, "step": "polite: {wrd: a}"},
            ["3: pipelines.default.request.1.polite.wrd: unknown key 'wrd'; did you mean 'word'?"],
        ),
    ],
)
def test_what_is_wrong_is_told_with_its_line(errors_for, written, said):
    found = errors_for(**written)
    assert len(found) == len(said), found
    for one, part in zip(found, said, strict=True):
        assert part in one


def test_a_filter_without_a_method_is_an_error(errors_for):
    source = "from turnkeeper import RequestFilter\n\nclass Polite(RequestFilter):\n    pass\n"
    (error,) = errors_for(polite=source)
    assert error.startswith("1: filters.1: this filter changes nothing; define apply or set (RequestFilter)")


def test_an_answer_filter_belongs_under_answer(errors_for):
    source = POLITE.replace("RequestFilter", "AnswerFilter").replace("apply(self, messages, ", "first(self, ")
    (fault,) = errors_for(polite=source)
    assert fault == "3: pipelines.default.request.1: the filter 'polite' belongs under 'answer:'"


PICKY = """
import re
from pydantic import field_validator
from filters.base import RequestFilter

class Polite(RequestFilter):
    word: str

    def apply(self, messages, context):
        return messages

    @field_validator("word")
    @classmethod
    def _is_pattern(cls, word):
        re.compile(word)
        raise KeyError(word)
"""


def test_a_check_may_raise_anything(errors_for):
    (pattern,) = errors_for(polite=PICKY, step="polite: {word: '('}")
    assert pattern.startswith(
        "3: pipelines.default.request.1: the filter 'polite' does not take these options: "
    )
    assert "missing ), unterminated subpattern" in pattern
    (key,) = errors_for(polite=PICKY, step="polite: {word: x}")
    assert "KeyError: 'x'" in key
    (leaving,) = errors_for(polite=PICKY.replace("KeyError", "SystemExit"), step="polite: {word: x}")
    assert "SystemExit: x" in leaving


def test_a_check_shows_nothing_that_came_from_the_environment(errors_for):
    (fault,) = errors_for({"S": "s3cret"}, polite=PICKY, step="polite: {word: '${S}'}")
    assert "s3cret" not in fault
    assert "a value from the environment" in fault


ASKED = {"model": "m", "messages": [{"role": "user", "content": "Wait"}]}


def explained(config):
    pipeline = build_pipelines(load(config, {}))["default"]
    request = RawRequest(headers={}, query={}, body=json.dumps(ASKED).encode(), tenant="default")
    return explain.explain_request(request, pipeline, 0)


def test_an_explanation_calls_it_by_the_name_that_the_configuration_uses(write):
    (step,) = explained(write(polite=POLITE)).steps
    assert (step.filter, step.changed) == ("polite", True)


@pytest.mark.parametrize("returned", ["None", "[{'role': 'user'}]", "5", "(m for m in messages)"])
def test_an_explanation_says_so_when_it_returns_no_messages(write, returned):
    source = f"{POLITE.partition('        return')[0]}        return {returned}\n"
    with pytest.raises(TurnkeeperError, match="The filter 'polite' returned something else"):
        explained(write(polite=source))
