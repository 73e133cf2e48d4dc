import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.identity import SESSION_PLACES, USER_PLACES
from proxy.place import Place, identifier, opened


@pytest.mark.parametrize("place", [*SESSION_PLACES, *USER_PLACES], ids=str)
def test_a_place_gives_its_spelling_back(place):
    assert Place.parse(str(place)) == place
    assert hash(Place.parse(str(place))) == hash(place)


def test_a_place_forgives_spaces_around_its_parts():
    assert Place.parse(" header : X-Session-Id ") == Place.parse("header:X-Session-Id")


@pytest.mark.parametrize(
    ("spelling", "advice"),
    [
        ("", "begins with header:, query:, body: or message:"),
        ("X-Session-Id", "begins with"),
        ("heder:X-Session-Id", "did you mean header:X-Session-Id"),
        ("bdy:call.id", "did you mean body:call.id"),
        ("cookie:a", "begins with"),
        ("header:", "is no header's name"),
        ("header:X Session", "is no header's name"),
        ("header:Authorization", "is a secret"),
        ("header:COOKIE", "is a secret"),
        ("query:", "names nothing"),
        ("body:", "names nothing"),
        ("body:call..id", "names nothing"),
        ("body:call.", "names nothing"),
        ("body:.id", "names nothing"),
        ("body:call id", "names nothing"),
        ("body:messages.0.name", "message:metadata.user"),
        ("message:content", "message:metadata.user"),
    ],
)
def test_what_is_no_place_is_refused_with_advice(spelling, advice):
    with pytest.raises(ValueError, match=advice):
        Place.parse(spelling)


@given(st.text())
def test_parsing_only_ever_raises_value_errors(spelling):
    try:
        place = Place.parse(spelling)
    except ValueError:
        return
    assert Place.parse(str(place)) == place


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("abc", "abc"),
        ("  abc ", "abc"),
        ("Zoë 한국 🙂", "Zoë 한국 🙂"),
        ("x" * 256, "x" * 256),
        ("...", "..."),
        ("a..b", "a..b"),
        (1001, "1001"),
        (0, "0"),
        (-7, "-7"),
        ('it\'s "quoted"; DROP TABLE', 'it\'s "quoted"; DROP TABLE'),
    ],
)
def test_a_text_or_a_whole_number_is_an_id(value, expected):
    assert identifier(value) == expected


@pytest.mark.parametrize(
    "value",
    [
        *("", "   ", "\u00a0\u3000", ".", "..", " .. ", "x" * 257, "x" * 10_000_000),
        *("a\r\nSet-Cookie: b", "a\n", "\ta", "a\x00b", "a\x7f", "a\x85b", "a\u2028b", "\ud800"),
        *(True, False, None, 1.0, float("nan"), [], ["a"], {}, {"id": "a"}, b"a", 10**256, 1 << 40_000),
    ],
    ids=lambda value: repr(value)[:20] if not isinstance(value, int) else f"int{value.bit_length()}",
)
def test_nothing_else_is_an_id(value):
    assert identifier(value) is None


@pytest.mark.parametrize(
    "text",
    [
        "{'a': {'b': 1}}",
        '{"a": {"b": 1}}',
        " \n{'a':{'b':1},} ",
        "{'a': \"{'b': 1}\"}",
        '{"a": "{\\"b\\": 1}"}',
    ],
)
def test_an_object_written_as_text_is_opened_at_every_depth(text):
    assert opened(opened(text)["a"])["b"] == 1


@pytest.mark.parametrize(
    "text",
    [
        *("[1]", "1", "'a'", "{1, 2}", "{", "{'a': 1", "{'a': b}", "{[]: 1}", "{{}: 1}", "{**{}}"),
        "{'a': __import__('os').abort()}",
        "{'a': 'b' 'c' % 1}",
        "{'a\x00': 1}",
        "{'a':" * 1600,
        "{'a':" * 10_000,
        '{"a":' * 1600,
        "{'a':" + "-" * 8000 + "1}",
        "{'a':" + "(" * 8000,
        "{'a':x" + ".y" * 4000 + "}",
        "{'a':x" + "()" * 4000 + "}",
        "{'a':" + "9" * 8000 + "}",
        "{'a': '" + "x" * 8192 + "'}",
    ],
    ids=lambda text: text[:12],
)
def test_a_text_that_holds_no_object_opens_to_nothing(text):
    assert not opened(text)


def test_the_parser_does_not_print_a_callers_words(capfd, recwarn):
    assert opened(r"{'a': 'secret \d'}") == {"a": r"secret \d"}
    assert not recwarn.list
    assert capfd.readouterr().err == ""


@given(st.text(max_size=60).map(lambda text: "{" + text))
def test_opening_a_text_never_raises(text):
    opened(text)


@given(st.text(alphabet="{}[]()'\":,.-1ae \\", max_size=60).map(lambda text: "{'a':" + text))
def test_opening_what_looks_like_a_literal_never_raises(text):
    opened(text)
