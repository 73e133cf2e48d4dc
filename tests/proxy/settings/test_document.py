import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.settings.document import DocumentError, decode, parse

TEXT = """\
# a comment
listen: {host: here, port: 80}
upstreams:
  main:
    base_url: |
      text
    allow:
      - a
      - {b: c}
"""


def test_values_are_plain():
    value = {
        "listen": {"host": "here", "port": 80},
        "upstreams": {"main": {"base_url": "text\n", "allow": ["a", {"b": "c"}]}},
    }
    assert parse(TEXT).value == value


@pytest.mark.parametrize(
    ("place", "line", "key_line"),
    [
        (("listen",), 2, 2),
        (("listen", "port"), 2, 2),
        (("upstreams",), 4, 3),
        (("upstreams", "main"), 5, 4),
        (("upstreams", "main", "base_url"), 5, 5),
        (("upstreams", "main", "allow"), 8, 7),
        (("upstreams", "main", "allow", 1, "b"), 9, 9),
        (("upstreams", "main", "missing"), 4, 4),
        (("missing",), 1, 1),
        ((), 1, 1),
    ],
)
def test_each_place_has_its_line(place, line, key_line):
    document = parse(TEXT)
    assert (document.line(place), document.key_line(place)) == (line, key_line)


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("", 1, "the file is empty"),
        ("# only a comment\n", 1, "the file is empty"),
        ("\n- a\n", 2, "write keys and values"),
        ("just text", 1, "write keys and values"),
        ("a:\n\tb: 1\n", 2, "not tabs"),
        ("a: 1\nb: @x\n", 2, "in quotes"),
        ("a: 1\nb: c: d\n", 2, "a second ': '"),
        ("a: 1\nb: [1, 2\nc: 3\n", 2, "not closed"),
        ('a: "x\nb: 1\n', 1, "not closed"),
        ('a: "x\nb: "y"\n', 1, "not closed"),
        ("a:\n  - {b: 1\n  - c\n", 2, "not closed"),
        ("a: 1\nb: *s3cret\n", 2, "begins with *"),
        ("a: !s3cret!x 1\n", 1, "a tag"),
        ("a: 1\n---\nb: 2\n", 2, "a second document"),
        ("a: &a [*a]\n", 1, "an alias that holds itself"),
        ("a: &a\n  b: *a\n", 1, "an alias that holds itself"),
        (f"a: {'[' * 100}{']' * 100}", 1, "levels deep"),
        ("- " * 100_000, 1, "levels deep"),
        ("&a ? *a\n: 1\n", 1, ""),
    ],
)
def test_what_is_no_document_has_a_line_and_advice(text, line, said):
    with pytest.raises(DocumentError) as caught:
        parse(text)
    assert (caught.value.line, said in str(caught.value)) == (line, True), caught.value
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "place", "line", "said"),
    [
        ("a: 1\nb: 2\na: 3\n", ("a",), 3, "duplicate key"),
        ("a:\n  on: 1\n", ("a", "on"), 2, "true or false"),
        ("a: 1\nno: 1\n", ("no",), 2, "true or false"),
        ("a: 1\n7: 1\n", ("7",), 2, "must be text"),
        ("a: 1\n~: 1\n", ("~",), 2, "must be text"),
        ("a: 1\n[b]: 1\n", ("?",), 2, "must be text"),
        ("a: &x {b: 1}\nc:\n  <<: *x\n", ("c", "<<"), 3, "no meaning"),
        ("a: 1\nb: !s3cret x\n", ("b",), 2, "a tag"),
        ("a: 1\nb: !!python/object:os.system x\n", ("b",), 2, "a tag"),
        ("a: 1\nb: !!set {x}\n", ("b",), 2, "a tag"),
    ],
)
def test_a_problem_has_its_own_line_and_the_rest_stays(text, place, line, said):
    document = parse(text)
    (problem,) = document.problems
    assert (problem.path, problem.line) == (place, line)
    assert said in problem.message
    assert "s3cret" not in problem.message
    assert "a" in document.value


def test_aliases_cannot_blow_a_document_up():
    levels = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    levels += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 10)]
    with pytest.raises(DocumentError, match="aliases counted"):
        parse("\n".join(levels))


def test_an_alias_repeats_a_value():
    assert parse("a: &a {x: [1]}\nb: *a\n").value == {"a": {"x": [1]}, "b": {"x": [1]}}


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("2024-13-99", "2024-13-99"),
        ("2024-01-01", "2024-01-01"),
        ("0b_", "0b_"),
        ("!!int ''", ""),
        ("=", "="),
        ("!!int x", "x"),
        ("!!bool x", "x"),
        ("9" * 5000, "9" * 5000),
        ("0x1F", 31),
        ("~", None),
        ("1.5", 1.5),
        ("'5'", "5"),
        ("yes", True),
        ("1" + ":59" * 500 + ".5", "1" + ":59" * 500 + ".5"),
    ],
)
def test_what_only_looks_typed_is_text(written, value):
    assert parse(f"a: {written}").value == {"a": value}


@pytest.mark.parametrize(
    ("data", "line", "said"),
    [
        (b"a: 1\nb: \xff\n", 2, "not UTF-8"),
        ("a: 1".encode("utf-16"), 1, "not UTF-8"),
        (b"a: 1\n\nb: \x07\n", 3, "control character"),
        (b"a" * (256 * 1024 + 1), 1, "at most 256 KiB"),
    ],
)
def test_what_is_no_text_has_a_line_and_advice(data, line, said):
    with pytest.raises(DocumentError, match=said) as caught:
        decode(data)
    assert caught.value.line == line


def test_a_byte_order_mark_is_no_part_of_the_text():
    assert decode(b"\xef\xbb\xbfa: 1") == "a: 1"


YAML_LIKE = st.text(alphabet="ab:-[]{}&*!|>%@`'\"#?,~<= \n\t0$")


@given(YAML_LIKE | st.text())
def test_any_text_is_a_document_or_has_a_line_where_it_is_none(text):
    line = _line_of_the_trouble(text.encode("utf-8", "surrogatepass"))
    assert line is None or 1 <= line <= max(1, len(text.splitlines()))


def _line_of_the_trouble(data):
    try:
        parse(decode(data))
    except DocumentError as error:
        return error.line
    return None
