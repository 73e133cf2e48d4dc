"""Files as text: what the archive takes for documents."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Final

from proxy.memory.archive.records import Chunk
from proxy.memory.archive.sql import IndexRow, RowCodec, Steps, ensure_owner, fetch, fetch_value
from proxy.memory.archive.statements import DOCUMENT, DOCUMENTS, NO_DOCUMENT, NO_DOCUMENT_PASSAGES, PUT_CHUNK
from proxy.memory.stores.sql import id_bytes, id_text
from proxy.memory.stores.store import Key, Owner

_PDF: Final = EntryPoint("pdf", "pypdf:PdfReader", "turnkeeper.readers")
_PLAIN: Final = frozenset({".md", ".markdown", ".txt", ".text", ".rst"})
MAX_CHUNK: Final = 900
"""How many characters a part has at the most: what one can be told of at a time."""
_MARKS: Final = re.compile(r"(#{1,6})\s+")
_FENCE: Final = re.compile(r"\s*(```|~~~)")
_PARAGRAPH: Final = re.compile(r"(?:\n|\r(?!\n))\s*[\r\n]\s*")
# A full stop within a price, a version or an address ends no sentence.
_SENTENCE: Final = re.compile("(?<=[.!?])\\s+|(?<=[\u3002\uff01\uff1f])\\s*")


SUFFIXES: Final = frozenset({*_PLAIN, ".pdf"})
"""Of a folder, files that end so are documents."""


def document_files(path: Path) -> Iterator[Path]:
    """The file itself, or a folder's documents at any depth; hidden ones are left out."""
    if not path.is_dir():
        yield path
        return
    for found in sorted(path.rglob("*")):
        hidden = any(part.startswith(".") for part in found.relative_to(path).parts)
        if found.is_file() and not hidden and found.suffix.lower() in SUFFIXES:
            yield found


def document_name(path: Path) -> str:
    """What a file is known by, however its path is spelt: from the working folder on, else from the root."""
    here, whole = Path.cwd(), path.resolve() if ".." in path.parts else path.absolute()
    return (whole.relative_to(here) if whole.is_relative_to(here) else whole).as_posix()


def read_text(path: Path) -> str:
    """The text of a file. Raises OSError, and ValueError for one that is no text."""
    if path.suffix.lower() == ".pdf":
        return _pdf(path)
    content = path.read_bytes()
    if b"\0" in content:
        raise ValueError("it is no text; Markdown, plain text and PDF are read")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError("it is not written in UTF-8") from None


def _pdf(path: Path) -> str:
    try:
        reader = _PDF.load()
    except ModuleNotFoundError:
        raise ValueError("PDF needs the module pypdf; install turnkeeper[pdf]") from None
    try:
        return "\n\n".join(page.extract_text() for page in reader(path).pages)
    except OSError:
        raise
    except Exception as error:  # a broken file fails in many ways
        raise ValueError(f"it cannot be read as PDF ({type(error).__name__})") from error


def split_document(text: str, title: str) -> list[Chunk]:
    """The parts of a text or Markdown document, each under the headings that it stands under.

    They are the document's own text, in its order; between them stands nothing but white space.
    """
    return [
        Chunk(title=heading, text=part)
        for heading, section in _sections(text, title)
        for part in _parts(section)
    ]


def _sections(text: str, title: str) -> Iterator[tuple[str, str]]:
    headings: list[tuple[int, str]] = []
    lines: list[str] = []
    fenced = False
    for line in text.splitlines(keepends=True):
        fenced ^= bool(_FENCE.match(line))
        heading = None if fenced else _heading(line)
        if heading is None:
            lines.append(line)
            continue
        yield _title(title, headings), "".join(lines)
        headings = [*(one for one in headings if one[0] < heading[0]), heading]
        lines = []
    yield _title(title, headings), "".join(lines)


def _heading(line: str) -> tuple[int, str] | None:
    """The level and the words of a heading, if the line is one."""
    marks = _MARKS.match(line)
    if marks is None:
        return None
    words = line[marks.end() :].rstrip()
    bare = words.rstrip("#")
    name = bare.rstrip() if bare != bare.rstrip() or not bare else words
    return (len(marks[1]), name) if name else None


def _title(title: str, headings: list[tuple[int, str]]) -> str:
    return " > ".join([title, *(name for _, name in headings)])


def _parts(section: str) -> Iterator[str]:
    """Paragraphs together as far as they fit; one that is too long, by sentences, then by characters."""
    return filter(None, map(str.strip, _together(_cut(section, _PARAGRAPH), _by_sentences)))


def _by_sentences(paragraph: str) -> Iterator[str]:
    return _together(_cut(paragraph, _SENTENCE), _by_length)


def _by_length(sentence: str) -> Iterator[str]:
    yield from (sentence[start : start + MAX_CHUNK] for start in range(0, len(sentence), MAX_CHUNK))


def _cut(text: str, between: re.Pattern[str]) -> Iterator[str]:
    """The pieces of a text, each with what stands between it and the next."""
    start = 0
    for found in between.finditer(text):
        yield text[start : found.end()]
        start = found.end()
    yield text[start:]


def _together(pieces: Iterable[str], smaller: Callable[[str], Iterable[str]]) -> Iterator[str]:
    """Pieces together as long as they fit; those that do not fit by themselves are cut smaller."""
    held = ""
    for piece in pieces:
        whole = held + piece
        if len(whole.strip()) <= MAX_CHUNK:
            held = whole
            continue
        yield held
        *done, held = smaller(piece) if len(piece.strip()) > MAX_CHUNK else [piece]
        yield from done
    yield held


def add_document(
    shelf: RowCodec, tenant: str, path: str, chunks: Sequence[Chunk], *, at: float
) -> Steps[None]:
    """As the archive's ``add_document``."""
    yield from remove_document(tenant, path)
    whose = Owner(tenant)
    owner = yield from ensure_owner(whose)
    place = {"tenant": id_bytes(tenant), "path": id_bytes(path)}
    for number, chunk in enumerate(chunks):
        blob = shelf.encode(Key(tenant, path), chunk)
        item = yield from fetch_value(PUT_CHUNK, {**place, "chunk": number, "at": at, "blob": blob})
        text = f"{chunk.title}\n{chunk.text}"
        yield from shelf.index(whose, owner, text, IndexRow(DOCUMENT, item, at))


def documents(tenant: str) -> Steps[list[str]]:
    """As the archive's ``documents``."""
    rows = yield from fetch(DOCUMENTS, {"tenant": id_bytes(tenant)})
    return [id_text(path) for (path,) in rows]


def remove_document(tenant: str, path: str) -> Steps[bool]:
    """As the archive's ``remove_document``."""
    place = {"tenant": id_bytes(tenant), "path": id_bytes(path)}
    yield from fetch(NO_DOCUMENT_PASSAGES, place)
    rows = yield from fetch(NO_DOCUMENT, place)
    return bool(rows)
