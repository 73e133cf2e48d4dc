"""``turnkeeper filters`` and ``turnkeeper schema``."""

import json
import os
import pty
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from docs.make import OWN, ROOT
from proxy.cli import app

ENVIRON = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm", "COLUMNS": "80"}


def turnkeeper(*arguments):
    return CliRunner().invoke(app, [*map(str, arguments)], env=ENVIRON)


def test_the_list_is_plain_where_it_is_piped():
    done = turnkeeper("filters")
    assert done.stdout.startswith("request:\n  drop_messages ")
    assert "  drop_messages        Drop messages by their source, their role, or both.\n" in done.stdout
    assert "\x1b" not in done.stdout


def test_one_filter_is_a_page():
    done = turnkeeper("filters", "drop_messages")
    assert done.stdout.startswith("# drop_messages\n\n*Request filter.* Drop messages by")
    assert "- drop_messages: {sources: [silence, llm_failure]}" in done.stdout


def test_a_terminal_gets_colour():
    for arguments in (["filters"], ["filters", "drop_messages"]):
        assert b"\x1b[" in on_a_terminal(*arguments)


def on_a_terminal(*arguments):
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "proxy", *arguments]
    process = subprocess.Popen(command, env=ENVIRON, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    shown = b""
    try:
        while piece := os.read(ours, 65536):
            shown += piece
    except OSError:  # the other end is closed
        pass
    assert process.wait(30) == 0
    os.close(ours)
    return shown


def test_machines_get_json():
    listed = json.loads(turnkeeper("filters", "--json").stdout)
    assert {"drop_messages", "repair_history"} <= {each["name"] for each in listed}
    (one,) = json.loads(turnkeeper("filters", "drop_messages", "--json").stdout)
    assert one["options"][0]["name"] == "sources"


def test_an_unknown_name_is_answered_with_what_was_meant():
    done = turnkeeper("filters", "drop_mesages")
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith("no filter named 'drop_mesages'; did you mean 'drop_messages'? Available: ")


def test_a_users_own_filters_are_listed_with_their_configuration():
    done = turnkeeper("filters", "--config", OWN)
    assert "  glossary " in done.stdout
    assert "  spell_digits " in done.stdout
    assert turnkeeper("filters", "glossary").exit_code == 2


def test_the_schema_is_printed_or_written(tmp_path):
    out = tmp_path / "schema.json"
    assert turnkeeper("schema", "--out", out).stdout == ""
    assert turnkeeper("schema").stdout == out.read_text() == (ROOT / "config/schema.json").read_text()
    own = turnkeeper("schema", "--config", OWN).stdout
    assert "RequestFilter.glossary" in json.loads(own)["$defs"]


def test_a_schema_that_cannot_be_written_is_told(tmp_path):
    done = turnkeeper("schema", "--out", tmp_path / "none" / "s.json")
    assert done.exit_code == 1
    assert done.stderr == f"{tmp_path}/none/s.json: cannot be written: No such file or directory\n"


@pytest.mark.parametrize("command", ["filters", "schema"])
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("filters: [none.py]", "1: filters.1: the file cannot be read"),
        ("\nfilters: ['${NONE}']", "2: filters.1: the environment has no NONE"),
        ("filters: [", "1: document: "),
    ],
)
def test_files_that_cannot_be_had_are_told(tmp_path, command, text, said):
    config = tmp_path / "c.yaml"
    config.write_text(text)
    done = turnkeeper(command, "--config", config)
    assert done.exit_code == 1
    assert done.stderr.startswith(f"{config}:{said}")
    assert "Traceback" not in done.stderr
