"""What the transactions of this process change in an SQLite file, one by one."""

import sqlite3
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from proxy.memory.stores.sqlite_file import DatabaseFile


def on_statement(monkeypatch: pytest.MonkeyPatch, callback: Callable[[str], object]) -> None:
    """Calls back before each statement of those who open a file to write from now on."""
    open_file = DatabaseFile.open

    def traced(file: DatabaseFile) -> sqlite3.Connection:
        connection = open_file(file)
        connection.set_trace_callback(callback)
        return connection

    monkeypatch.setattr(DatabaseFile, "open", traced)


class Commits:
    """Looks, with a query for a number, at a file before each statement of those who open it from now on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, path: Path, query: str) -> None:
        self._path, self._query = path, query
        self._numbers: list[int] = []
        self._reader: sqlite3.Connection | None = None
        on_statement(monkeypatch, self._on_statement)

    def _on_statement(self, _statement: str) -> None:
        self._numbers.append(self.number)

    @property
    def number(self) -> int:
        """What the query says now."""
        if self._reader is None:
            self._reader = sqlite3.connect(self._path, check_same_thread=False)
        return int(self._reader.execute(self._query).fetchone()[0] or 0)

    @property
    def changes(self) -> list[int]:
        """By how much the number fell with each transaction."""
        return [before - after for before, after in pairwise([*self._numbers, self.number])]
