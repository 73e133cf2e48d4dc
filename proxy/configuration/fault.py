"""One thing that is wrong with a configuration, and where."""

import msgspec

from proxy.configuration.word import is_word

Place = tuple[str | int, ...]


class Fault(msgspec.Struct, frozen=True):
    """What is wrong at one place of a file, and what to write instead; lines count from 1."""

    file: str
    line: int
    path: str
    message: str

    def __str__(self) -> str:
        return f"{_one_line(self.file)}:{self.line}: {self.path}: {_one_line(self.message)}"


def dotted(place: Place) -> str:
    """A place as one reads it: ``pipelines.default.request.1``; the whole file is ``document``."""
    return ".".join(str(step) if is_word(str(step)) else "?" for step in place) or "document"


def _one_line(text: str) -> str:
    return text if text.isprintable() else ascii(text)[1:-1]
