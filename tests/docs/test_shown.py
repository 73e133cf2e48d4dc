"""What counts as the same, where a page shows an answer and another comes."""

from pathlib import Path

import pytest

from proxy.settings.load import check_config
from tests.documentation import ROOT, Block, alike, blocks, check_shown, completed


@pytest.mark.parametrize(
    ("shown", "got"),
    [
        ({"a": 1}, {"a": 1}),
        ({"a": 1, "…": "…"}, {"a": 1, "b": 2}),
        ([1, "…"], [1, 2, 3]),
        ("chatcmpl-…", "chatcmpl-ec95"),
        ({"created": 1}, {"created": 1795174893.5}),
        ({"a": "…"}, {"a": None}),
    ],
)
def test_what_differs_each_time_may_differ(shown: object, got: object) -> None:
    assert alike(shown, got)


@pytest.mark.parametrize(
    ("shown", "got"),
    [
        ({"a": 1}, {"a": 2}),
        ({"a": 1}, {"a": 1, "b": 2}),
        ({"a": 1, "b": 2}, {"a": 1}),
        ([1], [1, 2]),
        ([1, 2, "…"], [1]),
        ("chatcmpl-…", "other"),
        ({"created": 1}, {"created": "now"}),
        (1, True),
        ({"a": 1, "…": "…"}, {"b": 2}),
    ],
)
def test_anything_else_may_not(shown: object, got: object) -> None:
    assert not alike(shown, got)


def test_a_page_that_shows_something_else_is_told_where() -> None:
    block = Block("page.md", 7, "json", '{"status": "ready"}')
    with pytest.raises(AssertionError, match=r"page\.md:7"):
        check_shown(block, '{"status": "degraded"}')


def test_blocks_are_found_with_their_lines() -> None:
    page = ROOT / "README.md"
    for block in blocks(page):
        assert page.read_text().splitlines()[block.line - 1].strip() == f"```{block.language}"


@pytest.mark.parametrize(
    "text",
    [
        "- repair_history\n- merge_consecutive",
        "- filler: {after: 2s, phrases: [Well.]}",
        "identity: {default_session: one}",
        "limits: {requests_per_minute: 1}",
        'upstreams: {other: {base_url: "practice:"}}',
        "request: [repair_history]\nkeep_alive: 10s",
    ],
)
def test_a_piece_of_a_configuration_is_made_whole(text: str, tmp_path: Path) -> None:
    path = tmp_path / "page.yaml"
    path.write_text(completed(text))
    assert check_config(path, {}).errors == []


@pytest.mark.parametrize(
    "text", ["- no_such_step", "limits: {requests: 1}", "identity: {sesion: []}", "keep_alive: soon"]
)
def test_a_fault_in_a_piece_stays_one(text: str, tmp_path: Path) -> None:
    path = tmp_path / "page.yaml"
    path.write_text(completed(text))
    assert check_config(path, {}).errors != []
