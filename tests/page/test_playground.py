"""What the playground puts before one to edit is what the configuration says."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from filters.base import Filter
from filters.filler import Filler
from proxy.errors import filter_name
from proxy.page.trials import as_yaml, loaded_filters, own_filters
from proxy.settings.build_pipelines import build_pipelines
from proxy.settings.diagnostics import Diagnostic
from proxy.settings.load import Steps, load, load_steps
from proxy.turn.pipeline import Pipeline
from tests.discovery import shown_settings, spoken_settings

ROOT = Path(__file__).parents[2]
CONFIGURATIONS = sorted([*ROOT.glob("config/*.yaml"), *ROOT.glob("examples/*/*.yaml")])


def pipelines_of(path: Path) -> Mapping[str, Pipeline]:
    return build_pipelines(load(path, {}))


EMPTY = msgspec.structs.replace(
    pipelines_of(ROOT / "config/agora.yaml")["default"], filters=(), answer_filters=()
)


def assert_read_back(pipeline: Pipeline, among: Mapping[str, Pipeline]) -> None:
    draft = load_steps(as_yaml(pipeline), loaded_filters(own_filters(among))).settings
    assert isinstance(draft, Steps), draft
    assert written(draft.request, draft.answer) == written(pipeline.filters, pipeline.answer_filters)


def written(*sides: Sequence[Filter]) -> list[list[tuple[str, object]]]:
    """Names and options: a filter of one's own is loaded anew, and is another class then."""
    return [[(filter_name(step), step.model_dump()) for step in side] for side in sides]


@pytest.mark.parametrize("path", CONFIGURATIONS, ids=lambda path: path.stem)
def test_a_shipped_pipeline_is_read_back_as_it_is(path: Path):
    pipelines = pipelines_of(path)
    for pipeline in pipelines.values():
        assert_read_back(pipeline, pipelines)


@pytest.mark.parametrize("title", shown_settings())
def test_a_request_filter_is_read_back_as_its_example_sets_it(title: str):
    assert_read_back(msgspec.structs.replace(EMPTY, filters=(shown_settings()[title],)), {})


@pytest.mark.parametrize("title", spoken_settings())
def test_an_answer_filter_is_read_back_as_its_example_sets_it(title: str):
    assert_read_back(msgspec.structs.replace(EMPTY, answer_filters=(spoken_settings()[title],)), {})


@given(st.integers(100, 10_000).map("{}ms".format) | st.integers(100_000, 999_999).map("1.{}s".format))
def test_whatever_a_filler_waits_for_is_read_back(after: str):
    filler = Filler(after=after, phrases=("One moment.",))
    assert_read_back(msgspec.structs.replace(EMPTY, answer_filters=(filler,)), {})


@pytest.mark.parametrize("text", ["- repair_history", "repair_history", "---"])
def test_what_names_no_side_is_told_the_two_that_there_are(text: str):
    (fault,) = load_steps(text, loaded_filters({})).errors
    assert isinstance(fault, Diagnostic)
    assert "'request" in fault.message
    assert "'answer" in fault.message
    assert "upstreams" not in fault.message
