import io
import subprocess
import sys

import pytest

from proxy.commands.terminal import write_lines
from proxy.trial import render


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_pipe_gets_no_colours_and_a_terminal_does(monkeypatch):
    for name in ("NO_COLOR", "TERM", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    pipe, terminal = io.TextIOWrapper(io.BytesIO(), "utf-8"), Terminal()
    write_lines([render.line("✓ [bold]x", "green")], pipe)
    pipe.seek(0)
    assert pipe.read() == "✓ [bold]x\n"
    write_lines([render.line("✓ [bold]x", "green")], terminal)
    assert terminal.getvalue() == "\x1b[32m✓ [bold]x\x1b[0m\n"


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_pipe_that_knows_few_letters_gets_the_rest_escaped(encoding):
    raw = io.BytesIO()
    pipe = io.TextIOWrapper(raw, encoding)
    write_lines([render.line("✓ ok")], pipe)
    pipe.flush()
    assert raw.getvalue() == b"\\u2713 ok\n"


def test_a_server_does_not_load_what_shows_colours():
    look = "import sys, proxy.cli; sys.exit('rich' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", look], timeout=60, check=False).returncode == 0
