import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from proxy.memory.archive.documents import MAX_CHUNK, document_files, read_text, split_document
from proxy.memory.archive.records import DocumentChunk


def test_each_part_stands_under_its_headings():
    text = "Welcome.\n\n# Hours\n\nFrom nine.\n\n## Sunday\n\nClosed.\n\n# Parking\n\nFree.\n"
    assert split_document(text, "faq") == [
        DocumentChunk(title="faq", text="Welcome."),
        DocumentChunk(title="faq > Hours", text="From nine."),
        DocumentChunk(title="faq > Hours > Sunday", text="Closed."),
        DocumentChunk(title="faq > Parking", text="Free."),
    ]


def test_a_comment_in_code_is_no_heading():
    (part,) = split_document("```\n# not a heading\n```", "faq")
    assert "# not a heading" in part.text


@given(st.lists(st.sampled_from(["word ", "A sentence. ", "\n\n", "x" * 1000, "。", "# H\n"]), max_size=400))
def test_parts_are_short_and_hold_every_word(pieces: list[str]):
    text = "".join(pieces)
    parts = split_document(text, "t")
    assert all(0 < len(part.text) <= MAX_CHUNK for part in parts)
    lines = [line for line in text.splitlines() if not line.startswith("# ")]
    assert "".join("".join(part.text for part in parts).split()) == "".join("".join(lines).split())


PIECES = [
    "word ",
    "$3.99",
    "https://a.b/c.html?d=1!e ",
    "A sentence. ",
    "No?!\t",
    "。",
    "\uff01 ",
    "\n",
    "\n \n\n",
]
OTHERS = ["x" * 1000, " " * 1000, "\r\n", "\r", "\x0c", "\u2028", "\u3000", "## Hours ##\n", "~~~\n", "# "]


@given(st.lists(st.sampled_from([*PIECES, *OTHERS]), max_size=300))
@example(["## Hours ##\n", "\u3000", "## Hours ##\n"])
def test_parts_are_the_documents_own_text_with_nothing_but_blanks_between(pieces: list[str]):
    text, ends = "".join(pieces), {0}
    for part in split_document(text, "t"):
        assert part.text == part.text.strip() and 0 < len(part.text) <= MAX_CHUNK
        ends = {begin + len(part.text) for end in ends for begin in begins(text, part.text, end)}
        assert ends
    assert any(is_left_out(text[end:]) for end in ends)


def begins(text: str, part: str, end: int) -> Iterator[int]:
    """Where a part may stand: a line that is spelt like a heading may be one, or the part itself."""
    begin = text.find(part, end)
    while begin >= 0 and is_left_out(text[end:begin]):
        yield begin
        begin = text.find(part, begin + 1)


def is_left_out(between: str) -> bool:
    return all(map(is_blank_or_heading, between.splitlines()))


def is_blank_or_heading(line: str) -> bool:
    return not line.strip() or line.startswith("#")


def test_prices_versions_and_addresses_stay_whole_in_a_long_paragraph():
    said = "We charge $3.99 per item for version 2.1.5; see www.example.com/help.html for it. " * 30
    parts = split_document(said, "t")
    assert len(parts) > 1
    assert " ".join(part.text for part in parts) == said.strip()
    assert all(part.text.endswith("for it.") for part in parts)


def test_sentences_without_blanks_between_them_are_told_apart():
    parts = split_document("「はい。」そうです。" * 200, "t")
    assert "".join(part.text for part in parts) == "「はい。」そうです。" * 200
    assert all(part.text[-1] == "。" for part in parts)


@pytest.mark.parametrize(
    ("line", "heading"),
    [("# C# #", "C#"), ("# C#", "C#"), ("## Hours ##  ", "Hours"), ("#\tA  B", "A  B"), ("###### #x", "#x")],
)
def test_a_heading_is_what_stands_between_its_marks(line: str, heading: str):
    assert split_document(f"{line}\r\nText.", "t") == [DocumentChunk(title=f"t > {heading}", text="Text.")]


@pytest.mark.parametrize("line", ["#", "#x", "####### x", "## ##", "# #"])
def test_marks_alone_are_no_heading(line: str):
    assert [part.title for part in split_document(f"{line}\nText.", "t")] == ["t"]


def test_a_line_of_marks_takes_no_longer_than_others():
    began = time.perf_counter()
    split_document("# " + "# " * 100_000 + "x", "t")
    split_document("# " + "#" * 100_000 + "x", "t")
    assert time.perf_counter() - began < 2


def test_a_folder_is_its_documents_at_any_depth(tmp_path: Path):
    for name in ("a.md", "b/c.txt", ".git/d.md", "e.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    assert [path.name for path in document_files(tmp_path)] == ["a.md", "c.txt"]
    assert list(document_files(tmp_path / "e.png")) == [tmp_path / "e.png"]


@pytest.mark.parametrize(("name", "content"), [("a.md", b"a\0b"), ("a.txt", b"\xff"), ("a.pdf", b"no pdf")])
def test_what_is_no_text_is_told(tmp_path: Path, name: str, content: bytes):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=r"text|UTF-8|pypdf|PDF"):
        read_text(tmp_path / name)
