"""A result is restored with its call if the call has left the window; other results stay."""

import msgspec

from proxy.memory.view import RequestView, prompt_view
from tests.memory.call import Call, calling, message, result

CALLS = calling("x").tool_calls


def called():
    call = Call()
    call.ask("u:Look.", tool_calls=CALLS)
    return call.held


def seen(held, *window):
    """Returns the restored messages, and the rest of the window."""
    snapshot, heard, _ = prompt_view(RequestView(window).view_of(held))
    return [(m.role, m.tool_call_id or None) for m in snapshot.dropped], list(heard)


def test_a_result_that_is_new_goes_with_its_held_call():
    system, newest = message("s:Be brief."), message("u:And?")
    whole = [("user", None), ("assistant", None), ("tool", "x")]
    assert seen(called(), result("x")) == (whole, [])
    assert seen(called(), system, result("x"), newest) == (whole, [system, newest])


def test_a_result_whose_call_the_window_shows_stays_in_the_window():
    for window in ([calling("x"), result("x")], [result("x"), calling("x")]):
        asked = [message("u:Look."), *window]
        assert seen(called(), *asked) == ([], asked)


def test_a_result_of_a_call_that_nobody_saw_stays_in_the_window():
    assert seen(called(), result("y"))[1] == [result("y")]


def test_results_stay_where_the_window_would_be_another_talk_without_them():
    lines = [message("u:Look."), calling("x"), result("x", "one"), calling("y"), result("y", "two")]
    timed = [msgspec.structs.replace(m, turn_id=0, timestamp=1_700_000_000 + i) for i, m in enumerate(lines)]
    call = Call()
    call.ask(timed[0], answer="So.")
    call.ask(*timed[:3], answer="So.")
    assert seen(call.held, *timed[2:])[1] == timed[2:]
