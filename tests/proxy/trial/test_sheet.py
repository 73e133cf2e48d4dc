import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.trial import sheet


class Terminal(io.StringIO):
    def isatty(self):
        return True


@given(st.text())
def test_nothing_that_a_terminal_would_act_on_comes_through(text):
    shown = sheet.plain([sheet.line(text)])
    assert not [c for c in shown[:-1] if ord(c) < 32 or 127 <= ord(c) < 160 or 0xD800 <= ord(c) < 0xE000]
    assert shown.count("\n") == 1


def test_a_pipe_gets_no_colours_and_a_terminal_does(monkeypatch):
    for name in ("NO_COLOR", "TERM", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    pipe, terminal = io.TextIOWrapper(io.BytesIO(), "utf-8"), Terminal()
    sheet.show([sheet.line("✓ [bold]x", "green")], pipe)
    pipe.seek(0)
    assert pipe.read() == "✓ [bold]x\n"
    sheet.show([sheet.line("✓ [bold]x", "green")], terminal)
    assert terminal.getvalue() == "\x1b[32m✓ [bold]x\x1b[0m\n"


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_pipe_that_knows_few_letters_gets_the_rest_escaped(encoding):
    raw = io.BytesIO()
    pipe = io.TextIOWrapper(raw, encoding)
    sheet.show([sheet.line("✓ ok")], pipe)
    pipe.flush()
    assert raw.getvalue() == b"\\u2713 ok\n"
