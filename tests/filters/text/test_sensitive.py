"""Which texts count as personal data, and that a stream finds the same as a whole text."""

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
# The registry's own examples (SWIFT, "IBAN Registry").
REGISTRY = """
AD1200012030200359100100 AE070331234567890123456 AL47212110090000000235698741 AT611904300234573201
AZ21NABZ00000000137010001944 BA391290079401028494 BE68539007547034 BG80BNBG96611020345678
BH67BMAG00001299123456 BI4210000100010000332045181 BR9700360305000010009795493P1
BY13NBRB3600900000002Z00AB00 CH9300762011623852957 CR05015202001026284066 CY17002001280000001200527600
CZ6508000000192000145399 DE89370400440532013000 DJ2100010000000154000100186 DK5000400440116243
DO28BAGR00000001212453611324 EE382200221020145685 EG380019000500000000263180002 ES9121000418450200051332
FI2112345600000785 FK88SC123456789012 FO6264600001631634 FR1420041010050500013M02606
GB29NWBK60161331926819 GE29NB0000000101904917 GI75NWBK000000007099453 GL8964710001000206
GR1601101250000000012300695 GT82TRAJ01020000001210029690 HR1210010051863000160
HU42117730161111101800000000 IE29AIBK93115212345678 IL620108000000099999999 IQ98NBIQ850123456789012
IS140159260076545510730339 IT60X0542811101000000123456 JO94CBJO0010000000000131000302
KW81CBKU0000000000001234560101 KZ86125KZT5004100100 LB62099900000001001901229114
LC55HEMM000100010012001200023015 LI21088100002324013AA LT121000011101001000 LU280019400644750000
LV80BANK0000435195001 LY83002048000020100120361 MC5811222000010123456789030 MD24AG000225100013104168
ME25505000012345678951 MK07250120000058984 MN121234123456789123 MR1300020001010000123456753
MT84MALT011000012345MTLCAST001S NI45BAPR00000013000003558124 NL91ABNA0417164300 NO9386011117947
OM810180000001299123456 PK36SCBL0000001123456702 PL61109010140000071219812874 PS92PALS000000000400123456702
PT50000201231234567890154 QA58DOHB00001234567890ABCDEFG RO49AAAA1B31007593840000 RS35260005601001611379
RU0304452522540817810538091310419 SA0380000000608010167519 SC18SSCB11010000000000001497USD
SD2129010501234001 SE4550000000058398257466 SI56263300012039086 SK3112000000198742637541
SM86U0322509800000000270100 SO211000001001000100141 ST23000100010051845310146 SV62CENR00000000000000700025
TL380080012345678910157 TN5910006035183598478831 TR330006100519786457841326 UA213223130000026007233566001
VA59001123000012345678 VG96VPVG0000012345678901 XK051212012345678906 YE15CBYE0001018861234567891234
"""
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


@pytest.mark.parametrize("iban", REGISTRY.split())
def test_each_countrys_own_example_is_found_whole(iban):
    for written in (iban, " ".join(iban[i : i + 4] for i in range(0, len(iban), 4))):
        assert ALL.find(f"Pay {written} 77 now")[0] == (4, 4 + len(written), "iban")


def iban_of(country, account):
    """An IBAN with its check digits (ISO 13616)."""
    digits = "".join(str(int(letter, 36)) for letter in f"{account}{country}00")
    return f"{country}{98 - int(digits) % 97:02}{account}"


@pytest.mark.parametrize(("digits", "count"), [(8, 1), (7, 0), (0, 0)])
def test_an_account_has_ten_digits_or_more_with_its_check_digits(digits, count):
    account = "1" * digits + "A" * (18 - digits)
    assert len(Sensitive(["iban"]).find(iban_of("GB", account))) == count


def luhn(number):
    """The check digit of a card's number (ISO/IEC 7812-1)."""
    doubled = [int(digit) * (2 - place % 2) for place, digit in enumerate(reversed(number))]
    return str(-sum(each // 10 + each % 10 for each in doubled) % 10)


@given(st.sampled_from("23456"), st.text("0123456789", min_size=14, max_size=14), st.integers(1, 9))
def test_a_card_is_told_from_a_number_by_its_check_digit(first, rest, off):
    body = first + rest
    number = body + luhn(body)
    assert Sensitive(["card"]).find(number) == [(0, 16, "card")]
    wrong = body + str((int(number[-1]) + off) % 10)
    assert (0, 16, "card") not in Sensitive(["card"]).find(wrong)


@pytest.mark.parametrize(
    "number",
    [
        "4222222222222",  # 13 digits
        "30569309025904",  # 14
        "371449635398431",  # 15
        "6304000000000000",  # 16
        "6759649826438453",
        "63040000000000005",  # 17
        "675964982643845301",  # 18
        "6759649826438453003",  # 19
    ],
)
def test_cards_have_13_to_19_digits(number):
    number = number[:-1] + luhn(number[:-1])
    assert Sensitive(["card"]).find(f"Card {number}, thanks.") == [(5, 5 + len(number), "card")]
    assert Sensitive(["card"]).find(f"Card {number}x") == []


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
