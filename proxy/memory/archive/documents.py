"""Documents: reads files as text, splits them into self-contained chunks, and archives these."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Final

from proxy.memory.archive.records import DocumentChunk
from proxy.memory.archive.sql import RowCodec, Steps, ensure_owner, fetch, fetch_value
from proxy.memory.archive.statements import (
    DELETE_DOCUMENT,
    DELETE_DOCUMENT_PASSAGES,
    DOCUMENT,
    INSERT_CHUNK,
)
from proxy.memory.stores.sql import id_bytes
from proxy.memory.stores.store import Key, Owner

SUFFIXES: Final = frozenset({".md", ".markdown", ".txt", ".text", ".rst", ".pdf"})
"""The suffixes of files of a folder that are documents."""
MAX_CHUNK: Final = 900
"""The maximum of characters of a chunk, about as much as can be said at a time."""

_PDF_READER: Final = EntryPoint("pdf", "pypdf:PdfReader", "turnkeeper.readers")
_HEADING: Final = re.compile(r"(#{1,6})\s+")
_FENCE: Final = re.compile(r"\s*(```|~~~)")
_PARAGRAPH_END: Final = re.compile(r"(?:\n|\r(?!\n))\s*[\r\n]\s*")
# A full stop within a price, a version or an address does not end a sentence.
_SENTENCE_END: Final = re.compile("(?<=[.!?])\\s+|(?<=[\u3002\uff01\uff1f])\\s*")


def document_files(path: Path) -> Iterator[Path]:
    """Yields the file itself, or a folder's documents at any depth, except hidden ones."""
    if not path.is_dir():
        yield path
        return
    for file in sorted(path.rglob("*")):
        hidden = any(part.startswith(".") for part in file.relative_to(path).parts)
        if file.is_file() and not hidden and file.suffix.lower() in SUFFIXES:
            yield file


def document_name(path: Path) -> str:
    """Returns a file's normalised name: relative to the working folder, else absolute."""
    here, whole = Path.cwd(), path.resolve() if ".." in path.parts else path.absolute()
    return (whole.relative_to(here) if whole.is_relative_to(here) else whole).as_posix()


def read_text(path: Path) -> str:
    """Reads the text of a file. Raises OSError, and ValueError for a file without text."""
    if path.suffix.lower() == ".pdf":
        return _read_pdf(path)
    content = path.read_bytes()
    if b"\0" in content:
        raise ValueError("it is not text; add Markdown, plain text or PDF")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError("it is not written in UTF-8") from None


def _read_pdf(path: Path) -> str:
    try:
        reader = _PDF_READER.load()
    except ModuleNotFoundError:
        raise ValueError("PDF needs the module pypdf; install turnkeeper[pdf]") from None
    try:
        return "\n\n".join(page.extract_text() for page in reader(path).pages)
    except OSError:
        raise
    except Exception as error:  # a broken file fails in many ways
        raise ValueError(f"it cannot be read as PDF ({type(error).__name__})") from error


def split_document(text: str, title: str) -> list[DocumentChunk]:
    """Splits a plain text or Markdown document into chunks, each titled by the headings above it.

    The chunks contain the document's text in order, without white space between them.
    """
    chunks: list[DocumentChunk] = []
    for heading, section in _sections(text, title):
        # Whole paragraphs if they fit, else sentences, else characters.
        parts = _joined(_split(section, _PARAGRAPH_END), _split_paragraph)
        chunks += [DocumentChunk(title=heading, text=part.strip()) for part in parts if part.strip()]
    return chunks


def _sections(text: str, title: str) -> Iterator[tuple[str, str]]:
    """Yields the headings above each section, joined, and its text."""
    headings: list[tuple[int, str]] = []
    lines: list[str] = []
    fenced = False
    for line in text.splitlines(keepends=True):
        fenced ^= bool(_FENCE.match(line))
        heading = None if fenced else _heading(line)
        if heading is None:
            lines.append(line)
            continue
        yield " > ".join([title, *(name for _, name in headings)]), "".join(lines)
        headings = [*(one for one in headings if one[0] < heading[0]), heading]
        lines = []
    yield " > ".join([title, *(name for _, name in headings)]), "".join(lines)


def _heading(line: str) -> tuple[int, str] | None:
    """Returns the level and the words of a heading, if the line is one."""
    marks = _HEADING.match(line)
    if marks is None:
        return None
    words = line[marks.end() :].rstrip()
    bare = words.rstrip("#")
    name = bare.rstrip() if bare != bare.rstrip() or not bare else words
    return (len(marks[1]), name) if name else None


def _split_paragraph(paragraph: str) -> Iterator[str]:
    return _joined(_split(paragraph, _SENTENCE_END), _split_sentence)


def _split_sentence(sentence: str) -> list[str]:
    return [sentence[start : start + MAX_CHUNK] for start in range(0, len(sentence), MAX_CHUNK)]


def _split(text: str, separator: re.Pattern[str]) -> Iterator[str]:
    """Yields the pieces of a text, each with the separator after it."""
    start = 0
    for match in separator.finditer(text):
        yield text[start : match.end()]
        start = match.end()
    yield text[start:]


def _joined(pieces: Iterable[str], split: Callable[[str], Iterable[str]]) -> Iterator[str]:
    """Joins pieces as far as they fit into a chunk; splits a piece that does not fit."""
    chunk = ""
    for piece in pieces:
        longer = chunk + piece
        if len(longer.strip()) <= MAX_CHUNK:
            chunk = longer
            continue
        yield chunk
        *full, chunk = split(piece) if len(piece.strip()) > MAX_CHUNK else [piece]
        yield from full
    yield chunk


def add_document(
    codec: RowCodec, tenant: str, path: str, chunks: Sequence[DocumentChunk], *, at: float
) -> Steps[None]:
    """Adds a document, or replaces the one at its path."""
    yield from remove_document(tenant, path)
    owner = Owner(tenant)
    owner_id = yield from ensure_owner(owner)
    name = {"tenant": id_bytes(tenant), "path": id_bytes(path)}
    for number, chunk in enumerate(chunks):
        blob = codec.encode(Key(tenant, path), chunk)
        item = yield from fetch_value(INSERT_CHUNK, {**name, "chunk": number, "at": at, "blob": blob})
        row = {"owner": owner_id, "kind": DOCUMENT, "item": item, "at": at}
        yield from codec.index(owner, f"{chunk.title}\n{chunk.text}", row)


def remove_document(tenant: str, path: str) -> Steps[bool]:
    """Removes a document; returns whether there was one."""
    name = {"tenant": id_bytes(tenant), "path": id_bytes(path)}
    yield from fetch(DELETE_DOCUMENT_PASSAGES, name)
    rows = yield from fetch(DELETE_DOCUMENT, name)
    return bool(rows)
