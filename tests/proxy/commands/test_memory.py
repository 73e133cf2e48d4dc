"""A command that would look where nothing can be seen says so, and changes nothing."""

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from proxy.cli import app

CONFIG = """
memory: {sessions: "${MEMORY_URL:-sqlite:turnkeeper.db}", archive: {url: "${ARCHIVE_URL:-}"}}
upstreams: {main: {base_url: "practice:"}}
pipelines: {default: {upstreams: [main]}}
"""
OF_A_PERSON = [("forget", "ann"), ("forget", "--session", "s1"), ("export", "ann")]
OF_DOCUMENTS = [("documents", "list"), ("documents", "remove", "a.md")]
Run = Callable[..., Result]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.yaml").write_text(CONFIG)

    def invoke(*arguments: str, **environ: str) -> Any:
        return CliRunner().invoke(app, [*arguments, "--config", "c.yaml"], env=environ)

    return invoke


@pytest.mark.parametrize("arguments", OF_A_PERSON)
@pytest.mark.parametrize("archive", ["", "sqlite:archive.db"])
def test_sessions_in_the_process_of_a_server_cannot_be_seen_from_a_terminal(
    run: Run, tmp_path: Path, arguments: tuple[str, ...], archive: str
):
    sqlite3.connect(tmp_path / "archive.db").close()
    done = run(*arguments, MEMORY_URL="memory:", ARCHIVE_URL=archive)
    assert (done.exit_code, done.stdout) == (1, "")
    assert "/v1/memory/users/ID" in done.stderr


@pytest.mark.parametrize("arguments", [*OF_A_PERSON, *OF_DOCUMENTS])
@pytest.mark.parametrize(
    "environ",
    [{}, {"MEMORY_URL": "sqlite:sub/x.db"}, {"MEMORY_URL": "sqlite:here.db", "ARCHIVE_URL": "sqlite:no.db"}],
)
def test_a_database_that_is_not_there_is_not_made_to_look_into(
    run: Run, tmp_path: Path, arguments: tuple[str, ...], environ: dict[str, str]
):
    sqlite3.connect(tmp_path / "here.db").close()
    before = sorted(tmp_path.iterdir())
    done = run(*arguments, **environ)
    assert (done.exit_code, done.stdout) == (1, "")
    missing = list(environ.values())[-1:] or ["sqlite:turnkeeper.db"]
    assert str(tmp_path / missing[0].removeprefix("sqlite:")) in done.stderr
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("arguments", OF_DOCUMENTS)
def test_documents_need_the_archive_alone(run: Run, tmp_path: Path, arguments: tuple[str, ...]):
    (tmp_path / "a.md").write_text("Carrots are orange.")
    environ = {"MEMORY_URL": "sqlite:not-yet.db", "ARCHIVE_URL": "sqlite:archive.db"}
    assert run("documents", "add", "a.md", **environ).exit_code == 0
    assert run(*arguments, **environ).exit_code == 0


@pytest.mark.parametrize("arguments", OF_A_PERSON)
def test_what_is_there_is_looked_into(run: Run, tmp_path: Path, arguments: tuple[str, ...]):
    sqlite3.connect(tmp_path / "turnkeeper.db").close()
    done = run(*arguments)
    assert (done.exit_code, done.stderr) == (0, "")
