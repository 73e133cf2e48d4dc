"""Remembered text in a prompt: marked as data, in a fence that it cannot close."""

from collections.abc import Iterable
from typing import Final

_ANGLES: Final = str.maketrans({"<": "\u2039", ">": "\u203a"})


def fenced(name: str, note: str, lines: Iterable[str]) -> str:
    """The lines between ``<name>`` and ``</name>``, the note first; empty where there are none.

    What looks like an angle bracket in a line is none any more.
    """
    kept = [defused(line) for line in lines]
    return "\n".join((f"<{name}>", note, *kept, f"</{name}>")) if kept else ""


def defused(line: str) -> str:
    """The line as it stands in a fence."""
    return line.translate(_ANGLES)
