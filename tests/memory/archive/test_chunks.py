from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.memory.archive.archive import Chunk
from proxy.memory.archive.chunks import LONGEST, chunks
from proxy.memory.archive.reading import files, text_of


def test_each_part_stands_under_its_headings():
    text = "Welcome.\n\n# Hours\n\nFrom nine.\n\n## Sunday\n\nClosed.\n\n# Parking\n\nFree.\n"
    assert chunks(text, "faq") == [
        Chunk(title="faq", text="Welcome."),
        Chunk(title="faq > Hours", text="From nine."),
        Chunk(title="faq > Hours > Sunday", text="Closed."),
        Chunk(title="faq > Parking", text="Free."),
    ]


def test_a_comment_in_code_is_no_heading():
    (part,) = chunks("```\n# not a heading\n```", "faq")
    assert "# not a heading" in part.text


@given(st.lists(st.sampled_from(["word ", "A sentence. ", "\n\n", "x" * 1000, "。", "# H\n"]), max_size=400))
def test_parts_are_short_and_hold_every_word(pieces: list[str]):
    text = "".join(pieces)
    parts = chunks(text, "t")
    assert all(0 < len(part.text) <= LONGEST for part in parts)
    lines = [line for line in text.splitlines() if not line.startswith("# ")]
    assert "".join("".join(part.text for part in parts).split()) == "".join("".join(lines).split())


def test_a_folder_is_its_documents_at_any_depth(tmp_path: Path):
    for name in ("a.md", "b/c.txt", ".git/d.md", "e.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    assert [path.name for path in files(tmp_path)] == ["a.md", "c.txt"]
    assert list(files(tmp_path / "e.png")) == [tmp_path / "e.png"]


@pytest.mark.parametrize(("name", "content"), [("a.md", b"a\0b"), ("a.txt", b"\xff"), ("a.pdf", b"no pdf")])
def test_what_is_no_text_is_told(tmp_path: Path, name: str, content: bytes):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=r"text|UTF-8|pypdf|PDF"):
        text_of(tmp_path / name)
