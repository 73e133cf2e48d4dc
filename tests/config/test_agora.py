import re
from pathlib import Path

import pytest
import yaml

from filters.base import RequestFilter
from proxy.settings.filter_registry import FilterRegistry
from proxy.settings.load import check_config, load
from proxy.settings.pipeline import PipelineSettings
from proxy.settings.settings import LimitSettings, Settings
from tests.ready import results_of

READY = (
    "requests_per_minute",
    "tokens_per_minute",
    "concurrent_streams",
    "user_context",
    "timestamp_prefix",
    "merge_consecutive",
    "system_prompt",
    "recall",
    "rewrite",
    "redact",
    "set_parameters",
    "trim_history",
    "tools",
    "answer",
)
KEYS = {
    *Settings.model_fields,
    *LimitSettings.model_fields,
    *PipelineSettings.model_fields,
    *FilterRegistry().names(RequestFilter),
}
AGORA = Path(__file__).parents[2] / "config" / "agora.yaml"


def test_the_shipped_file_needs_no_environment():
    settings = load(AGORA, {})
    assert (settings.listen.host, settings.listen.port) == ("127.0.0.1", 8080)
    assert settings.upstreams["main"].base_url == "practice:"
    assert len(settings.pipelines["default"].request) == 7


def test_the_environment_says_where_and_whom_to_ask():
    environ = {
        "HOST": "0.0.0.0",
        "PORT": "80",
        "TURNKEEPER_KEYS": "alice:one",
        "UPSTREAM_BASE_URL": "https://api.example.com/v1",
        "UPSTREAM_API_KEY": "sk",
        "UPSTREAM_MODEL": "large",
        "UPSTREAM_ACCEPTS": "groq",
    }
    settings = load(AGORA, environ)
    main = settings.upstreams["main"]
    assert (settings.listen.host, settings.listen.port) == ("0.0.0.0", 80)
    assert (main.base_url, main.model, main.accepts) == ("https://api.example.com/v1", "large", "groq")


@pytest.mark.parametrize("name", [*READY, "all"])
def test_what_is_ready_to_uncomment_works_and_leaves_every_case_as_it_was(tmp_path, name):
    text = AGORA.read_text()
    for each in READY if name == "all" else [name]:
        text, count = re.subn(rf"(?m)^( *)# (?=(- )?{each}\b[:\n])", r"\1", text)
        assert count == 1, each
    file = tmp_path / "agora.yaml"
    file.write_text(text)
    assert [*check_config(file, {}).errors, *check_config(file, {}).warnings] == []
    assert [result for result in results_of(file) if result.failures] == []


def test_nothing_that_is_ready_to_uncomment_is_forgotten_here():
    found = re.findall(r"(?m)^ *# (?:- )?(\w+)(?:: [\[{\d].*)?\n", AGORA.read_text())
    assert [name for name in found if name in KEYS] == [*READY]


def test_what_is_ready_to_uncomment_has_a_word_of_advice():
    lines = AGORA.read_text().splitlines()
    for name in READY:
        above = next(i for i, line in enumerate(lines) if re.match(rf" *# (- )?{name}\b(:|$)", line)) - 1
        assert lines[above].strip().startswith("# ")
        assert lines[above].endswith(".")


def test_every_case_holds_and_the_order_of_steps_is_sound():
    results = results_of(AGORA)
    assert 6 <= len(results) <= 10
    assert [result for result in results if result.failures] == []
    assert check_config(AGORA, {}).warnings == []


@pytest.mark.parametrize(
    ("broken", "case"),
    [
        (
            {"repair_history": {"tools": False}},
            "tool results stand behind their call, and a lost one is made up",
        ),
        ({"repair_history": {"unanswered": "drop"}}, "tool results stand behind their call, and a lost"),
        ({"repair_history": {"empty": False}}, "control words, empty answers and doubled ones go"),
        ({"repair_history": {"repeated": False}}, "control words, empty answers and doubled ones go"),
        ({"repair_history": {"control": []}}, "control words, empty answers and doubled ones go"),
        (
            {"drop_messages": {"sources": ["silence"]}},
            "silence prompts and excuses for a failure are dropped",
        ),
        ({"drop_messages": {"sources": ["llm_failure"]}}, "silence prompts and excuses for a failure"),
        ({"drop_messages": {"roles": ["developer"]}}, "the instructions of a developer stay where they are"),
        ({"restore_interrupted": {"show": "heard"}}, "the unheard rest of an answer is marked"),
        ({"restore_interrupted": {"show": "original"}}, "the unheard rest of an answer is marked"),
        ({"repair_history": None}, "control words, empty answers and doubled ones go"),
        ({"drop_messages": None}, "silence prompts and excuses for a failure are dropped"),
        ({"restore_interrupted": None}, "the unheard rest of an answer is marked"),
    ],
)
def test_a_step_that_is_broken_breaks_a_case(tmp_path, broken, case):
    """``None`` takes the step out."""
    document = yaml.safe_load(AGORA.read_text())
    pipeline = document["pipelines"]["default"]
    ((name, options),) = broken.items()
    kept = [step for step in pipeline["request"] if name not in step]
    place = [name in step for step in pipeline["request"]].index(True)
    pipeline["request"] = kept if options is None else [*kept[:place], {name: options}, *kept[place:]]
    (tmp_path / "broken.yaml").write_text(yaml.safe_dump(document))
    failed = [result.name for result in results_of(tmp_path / "broken.yaml") if result.failures]
    assert any(each.startswith(case) for each in failed)


@pytest.mark.parametrize("accepts", ["mistral", "groq", "vllm"])
def test_another_kind_of_upstream_breaks_the_case_of_the_developer(tmp_path, accepts):
    (tmp_path / "other.yaml").write_text(AGORA.read_text().replace(":-openai}", f":-{accepts}}}"))
    failed = [result.name for result in results_of(tmp_path / "other.yaml") if result.failures]
    assert "the instructions of a developer stay where they are" in failed
