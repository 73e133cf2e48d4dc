"""``check`` warns of steps and settings that have no effect without memory or an archive."""

from collections.abc import Callable
from pathlib import Path

import pytest

from proxy.settings.load import check_config

CONFIG = """\
memory: {memory}
upstreams: {{main: {{base_url: 'practice:'}}}}
pipelines:
  default:
    upstreams: [main]
    tools: {tools}
    request: {request}
"""
NOTHING = "~"
SESSIONS = "{sessions: 'redis://127.0.0.1'}"
OFF = "{sessions: 'sqlite:a.db', archive: {keep: off}}"
BOTH = "{sessions: 'sqlite:a.db'}"
ELSEWHERE = "{sessions: 'redis://127.0.0.1', archive: {url: 'sqlite:a.db'}}"
Told = Callable[..., list[str]]


@pytest.fixture
def warnings_for(tmp_path: Path) -> Told:
    """The warnings for a configuration, as ``line: path: message``."""

    def read(memory: str, request: str = "[]", tools: str = "[]") -> list[str]:
        file = tmp_path / "c.yaml"
        text = CONFIG.format(memory=memory, request=request, tools=tools)
        file.write_text(text.removeprefix(f"memory: {NOTHING}\n"))
        assert check_config(file, {}).errors == []
        return [str(found).removeprefix(f"{file}:") for found in check_config(file, {}).warnings]

    return read


@pytest.mark.parametrize(
    "step", ["[restore_history, inject_summaries]", "[inject_summaries]", "[inject_episodes]"]
)
def test_a_step_that_tells_of_memory_needs_some(warnings_for: Told, step: str):
    found = warnings_for(NOTHING, step)
    assert [line.split(": ")[:3] for line in found] == [
        ["6", f"pipelines.default.request.{i}", "warning"] for i in range(1, step.count(",") + 2)
    ]
    assert all("without memory this has no effect; set 'memory:'" in line for line in found)
    for memory in (SESSIONS, OFF, BOTH, ELSEWHERE):
        assert warnings_for(memory, step) == []


def test_recall_needs_an_archive(warnings_for: Told):
    assert warnings_for(NOTHING, "[recall]")[0].startswith(
        "6: pipelines.default.request.1: warning: without memory"
    )
    for memory in (SESSIONS, OFF):
        (found,) = warnings_for(memory, "[recall]")
        assert found.startswith(
            "7: pipelines.default.request.1: warning: without an archive this has no effect"
        )
        assert "ARCHIVE_URL" in found
    for memory in (BOTH, ELSEWHERE):
        assert warnings_for(memory, "[recall]") == []


def test_facts_are_kept_beside_sessions_too_unless_the_archive_is_switched_off(warnings_for: Told):
    assert warnings_for(NOTHING, "[inject_facts]")[0].startswith(
        "6: pipelines.default.request.1: warning: without memory"
    )
    (found,) = warnings_for(OFF, "[inject_facts]")
    assert found.startswith(
        "7: pipelines.default.request.1: warning: with the archive switched off, no facts are stored"
    )
    for memory in (SESSIONS, BOTH, ELSEWHERE):
        assert warnings_for(memory, "[inject_facts]") == []


def test_tools_need_facts(warnings_for: Told):
    for memory, line in ((NOTHING, 5), (OFF, 6)):
        (found,) = warnings_for(memory, tools="[memory_store, memory_recall]")
        assert found.startswith(f"{line}: pipelines.default.tools: warning: ")
    for memory in (SESSIONS, BOTH, ELSEWHERE):
        assert warnings_for(memory, tools="[memory_store, memory_recall]") == []


@pytest.mark.parametrize(
    ("part", "shown", "said"),
    [
        ("facts: {upstream: main}", "[inject_facts]", "with the archive switched off, no facts are stored"),
        ("recall: {rerank: {upstream: main}}", "[]", "without an archive this has no effect"),
    ],
)
def test_what_works_on_the_archive_needs_one(warnings_for: Told, part: str, shown: str, said: str):
    name = part.partition(":")[0]
    found = warnings_for(OFF.replace("archive:", f"{part}, archive:"), shown)
    assert found[0].startswith(f"1: memory.{name}: warning: {said}")
    assert warnings_for(BOTH.replace("}", f", {part}}}"), shown) == []


def test_what_waits_needs_somebody_who_sees_it(warnings_for: Told):
    (found,) = warnings_for("{sessions: 'memory:', work: false}")
    assert found.startswith(
        "1: memory.work: warning: a worker cannot read sessions in the server's own process"
    )
    assert warnings_for(BOTH.replace("}", ", work: false}")) == []
    assert warnings_for("{sessions: 'memory:', work: true}") == []


def test_a_step_that_works_on_what_comes_needs_nothing(warnings_for: Told):
    for step in ("[repair_history]", "[restore_interrupted]", "[trim_history: {max_tokens: 100}]"):
        assert warnings_for(NOTHING, step) == []
