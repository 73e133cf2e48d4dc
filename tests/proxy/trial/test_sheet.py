from hypothesis import given
from hypothesis import strategies as st

from proxy.trial import sheet


@given(st.text())
def test_nothing_that_a_terminal_would_act_on_comes_through(text):
    shown = sheet.plain([sheet.line(text)])
    assert not [c for c in shown[:-1] if ord(c) < 32 or 127 <= ord(c) < 160 or 0xD800 <= ord(c) < 0xE000]
    assert shown.count("\n") == 1
