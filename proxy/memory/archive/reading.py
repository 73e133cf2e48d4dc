"""Files as text: what the archive takes for documents."""

from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Final

_PDF: Final = EntryPoint("pdf", "pypdf:PdfReader", "turnkeeper.readers")
_PLAIN: Final = frozenset({".md", ".markdown", ".txt", ".text", ".rst"})
SUFFIXES: Final = frozenset({*_PLAIN, ".pdf"})
"""Of a folder, files that end so are documents."""


def files(path: Path) -> Iterator[Path]:
    """The file itself, or a folder's documents at any depth; hidden ones are left out."""
    if not path.is_dir():
        yield path
        return
    for found in sorted(path.rglob("*")):
        hidden = any(part.startswith(".") for part in found.relative_to(path).parts)
        if found.is_file() and not hidden and found.suffix.lower() in SUFFIXES:
            yield found


def name_of(path: Path) -> str:
    """What a file is known by, however its path is spelt: from the working folder on, else from the root."""
    here, whole = Path.cwd(), path.resolve() if ".." in path.parts else path.absolute()
    return (whole.relative_to(here) if whole.is_relative_to(here) else whole).as_posix()


def text_of(path: Path) -> str:
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
