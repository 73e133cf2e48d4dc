"""A search in SQLite reads only rows with its terms, however much else the user has there."""

import sqlite3
from pathlib import Path

import pytest

from proxy.memory.archive.archive import open_archive
from proxy.memory.archive.statements import MATCH_ALL, MATCH_BEST, PASSAGES_BY_ID, PASSAGES_NEAR
from proxy.memory.stores.codec import Plain
from proxy.memory.stores.sql import Statement

pytestmark = pytest.mark.anyio
BY_ID = "INTEGER PRIMARY KEY (rowid=?)"


@pytest.mark.parametrize(
    ("statement", "first", "second"),
    [
        (MATCH_ALL, "SCAN turnkeeper_index VIRTUAL TABLE", f"SEARCH p USING {BY_ID}"),
        (MATCH_BEST, "SCAN turnkeeper_index VIRTUAL TABLE", f"SEARCH p USING {BY_ID}"),
        (PASSAGES_NEAR, f"SEARCH h USING {BY_ID}", "SEARCH p USING INDEX turnkeeper_passages_place (talk=?"),
        (PASSAGES_BY_ID, f"SEARCH p USING {BY_ID}", None),
    ],
)
async def test_a_search_begins_with_what_it_names(
    tmp_path: Path, statement: Statement, first: str, second: str | None
):
    archive = open_archive(f"sqlite:{tmp_path / 'a.db'}", codec=Plain())
    await archive.ping()
    await archive.aclose()
    connection = sqlite3.connect(tmp_path / "a.db")
    arguments = {"owner": 1, "ids": "[1]", "terms": "a", "limit": 1}
    plan = connection.execute(f"EXPLAIN QUERY PLAN {statement.named}", arguments).fetchall()
    connection.close()
    tables = [step for *_, step in plan if "turnkeeper_index" in step or step.startswith("SEARCH")]
    assert tables[0].startswith(first)
    assert second is None or tables[1].startswith(second)
