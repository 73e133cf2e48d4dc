"""The request's other fields: set, given, taken away and bounded."""

import msgspec
import pytest

from filters.base import Context
from filters.set_parameters import SetParameters

CONTEXT = Context(now=0.0)


def after(sent, **options):
    fields = {name: msgspec.Raw(raw.encode()) for name, raw in sent.items()}
    before = dict(fields)
    shown = SetParameters(**options).set(fields, CONTEXT)
    assert fields == before
    return {name: bytes(raw).decode() for name, raw in shown.items()}


@pytest.mark.parametrize(
    ("sent", "shown"),
    [("300", "300"), ("301", "300"), ("3e2", "3e2"), ("300.5", "300"), ("-1", "-1"), ("null", "null")],
)
def test_a_number_is_capped(sent, shown):
    assert after({"max_tokens": sent}, at_most={"max_tokens": 300}) == {"max_tokens": shown}


@pytest.mark.parametrize("sent", ['"1000"', "true", "[1000]", "1e999"])
def test_what_is_no_number_is_left_to_the_upstream(sent):
    assert after({"max_tokens": sent}, at_most={"max_tokens": 300}) == {"max_tokens": sent}


def test_what_is_not_sent_is_not_capped():
    assert after({}, at_most={"max_tokens": 300}) == {}


def test_a_default_stands_for_nothing_and_for_null_alone():
    sent = {"temperature": "0", "top_p": "null", "stop": " null "}
    default = {"temperature": 1, "top_p": 1, "stop": ["\n"], "seed": 7}
    shown = {"temperature": "0", "top_p": "1", "stop": '["\\n"]', "seed": "7"}
    assert after(sent, default=default) == shown


def test_a_default_is_capped_as_well():
    assert after({}, default={"n": 9}, at_most={"n": 2}) == {"n": "2"}


def test_the_model_can_be_set():
    assert after({"model": '"large"', "n": "1"}, set={"model": "small"}) == {"model": '"small"', "n": "1"}


def test_what_goes_is_gone_and_the_rest_keeps_its_order_and_its_bytes():
    sent = {"b": "1", "a": '{"x":  1.0}', "c": "2"}
    assert list(after(sent, remove=["c", "d"]).items()) == [("b", "1"), ("a", '{"x":  1.0}')]


@pytest.mark.parametrize("option", ["set", "default", "at_most", "remove"])
@pytest.mark.parametrize("name", ["messages", "stream"])
def test_messages_and_stream_cannot_be_set(option, name):
    with pytest.raises(ValueError, match=f"'{name}' cannot be set here: the"):
        SetParameters(**{option: [name] if option == "remove" else {name: 1}})


def test_something_must_be_set():
    with pytest.raises(ValueError, match="say what to set"):
        SetParameters()


def test_two_options_cannot_want_different_things():
    with pytest.raises(ValueError, match="'n' stands in 'set' and in 'at_most'"):
        SetParameters(set={"n": 1}, at_most={"n": 2})


def test_the_option_is_named_set_for_editors_too():
    assert "set" in SetParameters.model_json_schema()["properties"]
