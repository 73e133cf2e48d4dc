from hypothesis import given
from hypothesis import strategies as st

from proxy.trial import render


@given(st.text())
def test_nothing_that_a_terminal_would_act_on_comes_through(text):
    shown = render.plain([render.line(text)])
    assert not [c for c in shown[:-1] if ord(c) < 32 or 127 <= ord(c) < 160 or 0xD800 <= ord(c) < 0xE000]
    assert shown.count("\n") == 1
