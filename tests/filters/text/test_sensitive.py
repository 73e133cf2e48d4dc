"""What counts as personal, what does not, and that a stream finds what a whole text shows."""

import time
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from filters.text.personal import Sensitive

KINDS = ("email", "iban", "card", "ip", "phone")
ALL = Sensitive(KINDS, {"order": r"\bORD-[0-9]+\b"}, max_length=8)

PERSONAL = {
    "email": ["ann.b+x@mail.example.co.uk", "müller@example.de", "a@b.co"],
    "phone": [
        "+49 (0) 170 1234567",
        "+1 (212) 555-0123",
        "+442079460958",
        "(212) 555-0123",
        "212-555-0123",
        "1-800-555-2368",
        "0170/1234567",
        "01 23 45 67 89",
        "(030) 1234567",
        "090-1234-5678",
        "0049 170 1234567",
        "13812345678",
        "(11) 91234-5678",
    ],
    "card": ["4111 1111 1111 1111", "4111-1111-1111-1111", "5555555555554444", "378282246310005"],
    "iban": [
        "DE89 3704 0044 0532 0130 00",
        "de89370400440532013000",
        "GB82 WEST 1234 5698 7654 32",
        "NO93 8601 1117 947",
        "MT84MALT011000012345MTLCAST001S",
        "FR14 2004 1010 0505 0001 3M02 606",
        "BR97-0036-0305-0000-1000-9795-493P-1",
        "LC55HEMM000100010012001200023015",
    ],
    "ip": ["192.168.100.200", "2001:db8::1", "fe80::1", "::ffff:192.0.2.1"],
}
HARMLESS = [
    "[02:27] Hi",
    "(+02:05) Hi",
    "2026-11-20 10:30:00",
    "2026-05-12 0930",
    "20.11.2026",
    "01.02.2026 10:30",
    "01.05.-03.05.2026",
    "order 1234567890",
    "ORD 123456789012",
    "invoice-0123456789",
    "#0123456789",
    "id=0123456789",
    "4111 1111 1111 1112",
    "1678901234",
    "1678901234000",
    "12:30:45",
    "version 1.2.3.4.5",
    "v1.2.3.4",
    "256.1.1.1",
    "a[1::2]",
    "std::abc",
    "aa:bb:cc:dd:ee:ff",
    "0.123456789",
    "3.14159265358979",
    "$1,234,567.89",
    "@ann",
    "SW19 5AE then we walk to the end",
    "550e8400-e29b-41d4-a716-446655440000",
    "08.30-17.00",
]
each = pytest.mark.parametrize(
    ("kind", "text"), [(k, text) for k, texts in PERSONAL.items() for text in texts]
)


@each
@pytest.mark.parametrize(
    "around", ["{}", "It is {}, thanks.", "我的是{}。", "({})", '"{}"\n', "{} and 12 more"]
)
def test_what_is_personal_is_found_whole(kind, text, around):
    start = around.index("{}")
    assert ALL.find(around.replace("{}", text))[:1] == [(start, start + len(text), kind)]


@pytest.mark.parametrize("text", HARMLESS)
def test_what_only_looks_so_is_left(text):
    assert Sensitive(KINDS).find(text) == []


@each
def test_a_kind_that_is_not_asked_for_is_left(kind, text):
    others = Sensitive([k for k in KINDS if k != kind])
    assert (0, len(text), kind) not in others.find(text)


def test_a_card_is_found_among_other_numbers():
    assert ALL.find("50 4111 1111 1111 1111 12/27")[0] == (3, 22, "card")


@pytest.mark.parametrize("behind", ["", " A1", " AB12 CD34", "-0", " 3704 0044 0532 0130 00 12"])
def test_an_account_ends_where_its_country_says(behind):
    account = "DE89 3704 0044 0532 0130 00"
    assert Sensitive(["iban"]).find(f"DE 12 {account}{behind}") == [(6, 6 + len(account), "iban")]


@pytest.mark.parametrize(
    "text",
    [
        "DE89 3704 0044 0532 0130 01",
        "DE89 3704 0044 0532 0130 0",
        "DE893704004405320130000",
        "QQ33370400440532013000",
        "DEAB 3704 0044 0532 0130 00",
    ],
)
def test_what_is_of_no_countrys_form_is_no_account(text):
    assert Sensitive(["iban"]).find(text) == []


@pytest.mark.parametrize("text", ["DE89 ", "DE89-3704-", "AB12 3456 7890 1234, "])
def test_much_that_looks_like_accounts_is_read_in_no_time(text):
    many = text * (400_000 // len(text))
    began = time.thread_time()
    assert Sensitive(["iban"]).find(many) == []
    assert time.thread_time() - began < 1


def test_what_two_finds_cover_is_covered_wholly():
    both = Sensitive([], {"a": "abcd", "b": "cdef"})
    assert both.find("abcdef") == [(0, 4, "a"), (4, 6, "b")]


def test_an_own_pattern_that_would_run_on_is_found_in_pieces():
    assert Sensitive([], {"run": "x+"}, max_length=4).find("-xxxxxxxxxx-") == [
        (1, 5, "run"),
        (5, 9, "run"),
        (9, 11, "run"),
    ]


def test_an_own_pattern_sees_where_the_text_really_starts_and_ends():
    ends = Sensitive([], {"first": "^a", "last": "a$"}, max_length=1)
    assert ends.find("aaaaaa") == [(0, 1, "first"), (5, 6, "last")]


def test_half_a_character_is_no_fault():
    assert Sensitive(KINDS, {"x": "x"}).find("\ud800 x ann@example.org") == [(2, 3, "x"), (4, 19, "email")]


pieces = st.lists(
    st.one_of(
        st.sampled_from([*(text for texts in PERSONAL.values() for text in texts), *HARMLESS]),
        st.sampled_from(["ORD-1234", "ORD-12345678", ". ", ", ", " and ", "\n", "好的", "@", "+", "é"]),
        st.text("0123456789 +-.:@()abcDEx/", max_size=24),
        st.text(max_size=5),
    ),
    max_size=5,
)


@given(pieces=pieces, cuts=st.lists(st.integers(0, 40), max_size=6))
@example(pieces=["01.05.2026 0170 1234567"], cuts=[3, 20])
def test_a_stream_finds_what_the_whole_text_shows(pieces, cuts):
    text = "".join(pieces)
    found, start, known = [], 0, 0
    for cut in cuts:
        known = min(len(text), known + cut)
        context = max(0, start - 2)
        window = text[context:known]
        place = ALL.settled(window, start - context)
        found += _moved([hit for hit in ALL.find(window, start - context) if hit[1] <= place], context)
        start = place + context
    context = max(0, start - 2)
    found += _moved(ALL.find(text[context:], start - context), context)
    assert found == ALL.find(text)


def _moved(hits, by):
    return [(begin + by, end + by, kind) for begin, end, kind in hits]


@given(pieces=pieces)
def test_finds_are_in_order_apart_and_no_longer_than_the_longest(pieces):
    text = "".join(pieces)
    found = ALL.find(text)
    assert all(begin < end <= begin + ALL.longest for begin, end, _ in found)
    assert all(one[1] <= two[0] for one, two in pairwise(found))
    assert 0 <= ALL.settled(text) <= len(text)


def test_plain_words_wait_for_no_more_than_the_last_one():
    text = "Thank you very much for your call, goodbye"
    assert Sensitive(KINDS).settled(text) == text.index("goodbye")


@pytest.mark.parametrize(
    "again", ["a", "4 ", "0 ", "1.1.", "a@", "@a.", ":a", "+1", "(", "DE12 ", "DE12 3", "ORD-", "é"]
)
def test_a_text_made_to_be_slow_is_not(again):
    text = again * (100_000 // len(again))
    started = time.thread_time()
    ALL.find(text)
    assert time.thread_time() - started < 3
