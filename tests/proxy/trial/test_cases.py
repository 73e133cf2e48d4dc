"""Prompts of recorded calls written into a configuration: nothing else in it changes, whatever was said."""

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from filters.message import Message
from proxy.errors import ConfigError
from proxy.settings.load import load
from proxy.trial.explain import message_dict
from proxy.trial.replay import Prompt, ReplayedTurn
from proxy.trial.testing import recorded_case, with_cases
from tests.ready import UPSTREAM, pipeline_of, results_of

HEAD = UPSTREAM + "pipelines:\n"
LAYOUTS = {
    "without tests": HEAD + "  default:\n    upstreams: [main]\n",
    "no last line break": HEAD + "  default:\n    upstreams: [main]",
    "comments behind": HEAD + "  default:\n    upstreams: [main]\n\n    # A last word.\n\n# The end.\n",
    "with tests": HEAD + "  default:\n    upstreams: [main]\n    tests:\n"
    "      - {name: a, messages: ['user: x'], expect: ['user: x']}\n      # done\n",
    "a list as wide as its key": HEAD + "  default:\n    tests:\n"
    "    - {name: a, messages: ['user: x'], expect: ['user: x']}\n    upstreams: [main]\n",
    "another pipeline behind": HEAD + "  default:\n    upstreams: [main]\n  other:\n    upstreams: [main]\n",
    "keys behind": "pipelines:\n  default:\n    upstreams: [main]\n    request:\n      - repair_history\n"
    + UPSTREAM,
    "a block text at its end": HEAD + "  default:\n    upstreams: [main]\n    tests:\n"
    "      - name: a\n        messages: ['user: x']\n        expect:\n          - |-\n            user: x\n"
    + UPSTREAM[:0],
}
WRITTEN = ["plain", "- [a: ${B}] $$ #c", "line\n\n  break\n", "'\"", "Grüße 你好 🙂", "yes", "\t"]
WORDS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40)


def turn(words: str, number: int = 1) -> ReplayedTurn:
    messages = [
        Message(role="user", content=[{"type": "text", "text": "Look"}], turn_id=0),
        Message(role="user", content="Hello", turn_id=1, metadata={"user": "ann"}),
        Message(role="assistant", content=words, metadata={"interrupted": True, "original": words + "!"}),
        Message(role="user", content=words),
    ]
    empty = Prompt()
    return ReplayedTurn(
        number=number,
        call=1,
        at=1.79e9,
        words=words,
        against="present",
        before=empty,
        after=empty,
        user="ann",
        window=messages,
    )


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "words", ["plain", "- [a: ${B}] $$ #c", "line\n\n  break\n", "'\"", "Grüße 你好 🙂", "yes", "\t"]
)
def test_cases_stand_behind_the_others_and_hold(tmp_path, layout, words):
    text, path = LAYOUTS[layout], tmp_path / "c.yaml"
    pipeline = pipeline_of(path, text)
    extended = with_cases(
        text, "default", [recorded_case("room $1", turn(words, i), pipeline) for i in (1, 2)]
    )
    before, after = yaml.safe_load(text), yaml.safe_load(extended)
    added = after["pipelines"]["default"].pop("tests")[-2:]
    own = before["pipelines"]["default"].pop("tests", [])
    assert after == before
    assert [case["name"] for case in added] == ["room $$1, prompt 1", "room $$1, prompt 2"]
    path.write_text(extended, encoding="utf-8")
    results = results_of(path)
    assert [result.failures for result in results] == [()] * (len(own) + 2)
    for comment in ("# A last word.", "# The end.", "# done"):
        assert extended.count(comment) == text.count(comment)


@given(WORDS)
@example("One\x85two\u2028three")
def test_whatever_was_said_is_read_again(tmp_path_factory, words):
    path = tmp_path_factory.mktemp("cases") / "c.yaml"
    text = LAYOUTS["with tests"]
    case = recorded_case("s", turn(words), pipeline_of(path, text))
    path.write_text(with_cases(text, "default", [case]), encoding="utf-8")
    test = load(path, {}).pipelines["default"].tests[-1]
    assert test.messages[-1] == {"role": "user", "content": words}
    assert [*test.messages] == [message_dict(message) for message in turn(words).window]
    assert all(not result.failures for result in results_of(path))


@pytest.mark.parametrize(
    "text",
    [
        UPSTREAM + "pipelines: {default: {upstreams: [main]}}\n",
        HEAD + "  default:\n    upstreams: [main]\n    tests: []\n",
        HEAD + "  default: {upstreams: [main]}\n",
    ],
)
def test_what_stands_on_one_line_is_not_written_into(tmp_path, text):
    case = recorded_case("s", turn("Hi"), pipeline_of(tmp_path / "c.yaml", text))
    with pytest.raises(ConfigError, match="over several lines"):
        with_cases(text, "default", [case])


def test_a_file_that_would_grow_too_large_is_refused(tmp_path):
    text = LAYOUTS["without tests"]
    case = recorded_case("s", turn("x" * 100_000), pipeline_of(tmp_path / "c.yaml", text))
    with pytest.raises(ConfigError, match="--turn"):
        with_cases(text, "default", [case])
