"""Commands that cannot read the server's memory say so, and change nothing."""

import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from proxy.cli import app

CONFIG = """
memory: {sessions: "${MEMORY_URL:-sqlite:turnkeeper.db}", archive: {url: "${ARCHIVE_URL:-}"}}
upstreams: {main: {base_url: "practice:"}}
pipelines: {default: {upstreams: [main], request: [recall]}}
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


SPELT = ("docs/a.md", "{here}/docs/a.md", "docs/../docs/a.md", "./docs/a.md", "../{name}/docs/a.md")


def test_a_document_is_the_same_however_its_path_is_spelt(run: Run, tmp_path: Path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.md").write_text("We open at nine.")
    spelt = [each.format(here=tmp_path, name=tmp_path.name) for each in SPELT]
    for each in spelt:
        assert run("documents", "add", each).stdout == "1 of 1 documents were added.\n"
    assert run("documents", "add", *spelt).stdout == "1 of 1 documents were added.\n"
    assert run("documents", "list").stdout == "docs/a.md\n"
    for each in spelt:
        assert run("documents", "remove", each).exit_code == 0
        assert run("documents", "remove", each).exit_code == 1
        run("documents", "add", "docs")


def test_a_document_from_elsewhere_has_its_whole_path(run: Run, tmp_path_factory: pytest.TempPathFactory):
    document = tmp_path_factory.mktemp("elsewhere") / "b.md"
    document.write_text("We close at six.")
    assert run("documents", "add", str(document)).exit_code == 0
    assert run("documents", "list").stdout == f"{document}\n"


def test_a_pipe_gets_nothing_of_how_far_it_is(run: Run, tmp_path: Path):
    (tmp_path / "a.md").write_text("We open at nine.")
    assert run("documents", "add", "a.md").stderr == ""


@pytest.mark.parametrize(("answer", "code"), [(b"y\n", 0), (b"n\n", 1), (b"\n", 1)])
@pytest.mark.parametrize("yes", [[], ["--yes"]])
def test_on_a_terminal_it_asks_before_it_forgets(
    run: Run, tmp_path: Path, answer: bytes, code: int, yes: list[str]
):
    sqlite3.connect(tmp_path / "turnkeeper.db").close()
    ours, theirs = os.openpty()
    with closing(os.fdopen(ours, "r+b", buffering=0)) as keyboard, closing(os.fdopen(theirs, "rb")) as stdin:
        keyboard.write(answer)
        command = [sys.executable, "-m", "proxy", "forget", "ann", "--config", "c.yaml", *yes]
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        done = subprocess.run(
            command, cwd=tmp_path, env=environ, stdin=stdin, capture_output=True, timeout=60, check=False
        )
    assert done.returncode == (0 if yes else code)
    assert (b"for good?" in done.stdout) != bool(yes)
    assert (b"nothing to forget" in done.stdout) == (done.returncode == 0)


def test_documents_that_no_model_is_shown_are_told(run: Run, tmp_path: Path):
    (tmp_path / "a.md").write_text("We open at nine.")
    (tmp_path / "c.yaml").write_text(CONFIG.replace("[recall]", "[]"))
    done = run("documents", "add", "a.md")
    assert (done.exit_code, "no pipeline has the step 'recall'" in done.stderr) == (0, True)
    (tmp_path / "c.yaml").write_text(CONFIG.replace("request: [recall]", "tools: [memory_recall]"))
    assert run("documents", "add", "a.md").stderr == ""


def test_what_was_added_before_and_is_not_there_any_more_is_named(run: Run, tmp_path: Path):
    book = tmp_path / "book"
    (book / "old").mkdir(parents=True)
    for name in ("a.md", "b c.md", "old/d.md", "page.html"):
        (book / name).write_text("We open at nine.")
    (tmp_path / "book.md").write_text("We close at six.")
    for each in ("book", "book/page.html", "book.md"):
        assert run("documents", "add", each).stderr == ""
    (book / "a.md").write_text("")
    for path in (book / "b c.md", book / "old/d.md", tmp_path / "book.md"):
        path.unlink()
    assert [line.split(":")[0] for line in run("documents", "add", "book/a.md").stderr.splitlines()] == [
        "book/a.md"
    ] * 2
    done = run("documents", "add", "book")
    fault, *told = done.stderr.splitlines()
    assert "no text" in fault
    assert [line.split(":")[0] for line in told] == ["book/a.md", "book/b c.md", "book/old/d.md"]
    assert told[1].endswith(": turnkeeper documents remove 'book/b c.md'")
    assert run("documents", "remove", "book/a.md", "book/b c.md", "book/old/d.md").exit_code == 0
    (book / "a.md").write_text("We open at ten.")
    assert run("documents", "add", "book").stderr == ""
    assert [line.split(":")[0] for line in run("documents", "add", ".").stderr.splitlines()] == ["book.md"]
