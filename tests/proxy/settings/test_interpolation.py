import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.settings.document import Private, fill, interpolate, is_private

ENVIRON = {"HOST": "here", "EMPTY": "", "TRICK": "${HOST} $$ {a: b}"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain", "plain"),
        ("${HOST}", "here"),
        ("a ${HOST} b ${HOST}", "a here b here"),
        ("${NONE:-other}", "other"),
        ("${NONE:-}", ""),
        ("${EMPTY:-other}", "other"),
        ("${EMPTY}", ""),
        ("$${HOST}", "${HOST}"),
        ("$$$${HOST}", "$${HOST}"),
        ("$$${HOST}", "$here"),
        ("costs 5$", "costs 5$"),
        ("$HOST", "$HOST"),
        ("${NONE:-5$$}", "5$"),
        ("${TRICK}", "${HOST} $$ {a: b}"),
        ("${NONE:-http://h:1/}", "http://h:1/"),
    ],
)
def test_a_text_is_filled_in_once(text, expected):
    assert interpolate(text, ENVIRON) == expected


@pytest.mark.parametrize(
    "text", ["${", "${}", "${1A}", "${HOST", "${A:-${HOST}}", "${A:-{user}}", "${A-b}", "${ÄÖ}"]
)
def test_what_only_looks_like_a_variable_is_answered_with_its_form(text):
    with pytest.raises(ValueError, match="write \\$\\{NAME\\}"):
        interpolate(text, ENVIRON)


def test_a_missing_variable_is_named():
    with pytest.raises(ValueError, match="no ABSENT; set it"):
        interpolate("${HOST} ${ABSENT}", ENVIRON)


@pytest.mark.parametrize("text", ["${KEY}", "${KEY:-other}"])
@pytest.mark.parametrize("given", [{}, {"KEY": ""}])
@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_a_file_may_hold_what_a_variable_would(tmp_path, text, given, end):
    file = tmp_path / "key"
    file.write_bytes(f" s3cret\n${{HOST}} ü{end}".encode())
    filled = interpolate(text, {**given, "KEY_FILE": str(file)})
    assert filled == " s3cret\n${HOST} ü"
    assert isinstance(filled, Private)


def test_an_empty_file_is_an_empty_variable(tmp_path):
    (tmp_path / "key").write_text("\n")
    environ = {"KEY_FILE": str(tmp_path / "key")}
    assert (interpolate("${KEY}", environ), interpolate("${KEY:-other}", environ)) == ("", "other")
    assert interpolate("${KEY:-other}", {"KEY_FILE": ""}) == "other"


@pytest.mark.parametrize("content", [None, b"\xff", b"x" * 1_000_001])
def test_a_file_that_cannot_be_read_is_told_by_its_variable(tmp_path, content):
    if content is not None:
        (tmp_path / "key").write_bytes(content)
    with pytest.raises(ValueError, match="KEY_FILE names a file that cannot be read"):
        interpolate("${KEY:-other}", {"KEY_FILE": str(tmp_path / "key")})


def test_a_variable_and_its_file_are_one_too_many(tmp_path):
    (tmp_path / "key").write_text("new")
    with pytest.raises(ValueError, match="both KEY and KEY_FILE; remove one") as told:
        interpolate("${KEY}", {"KEY": "old-s3cret", "KEY_FILE": str(tmp_path / "key")})
    assert "s3cret" not in str(told.value)


def test_all_that_is_missing_in_a_document_is_told_by_its_place():
    wrong = {}
    value = fill({"a": ["${HOST}", "${X}", 5], "b": {"c": "${Y}"}}, ENVIRON, wrong)
    assert value == {"a": ["here", "", 5], "b": {"c": ""}}
    assert set(wrong) == {("a", 1), ("b", "c")}


def test_what_came_from_the_environment_never_shows_itself():
    value = {"a": ["x", interpolate("${HOST}", ENVIRON)]}
    assert is_private(value)
    assert "here" not in repr(value)
    assert not is_private({"a": ["x", "$$"], "b": 1})


@given(st.text())
def test_what_a_variable_holds_stays_as_it_is(secret):
    assert interpolate("<${V}>", {"V": secret}) == f"<{secret}>"
    assert isinstance(interpolate("${V}", {"V": secret}), Private)


@given(st.text())
def test_an_escaped_text_means_itself(text):
    assert interpolate(text.replace("$", "$$"), {}) == text
