from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.memory.archive.dates import time_ranges

NOW = datetime(2026, 11, 20, 15, 0, tzinfo=UTC)  # a Friday


def dates_in(question: str) -> list[tuple[str, str]]:
    days = [
        (datetime.fromtimestamp(span.begin, UTC), datetime.fromtimestamp(span.end, UTC))
        for span in time_ranges(question, NOW.timestamp())
    ]
    return [(f"{begin:%Y-%m-%d}", f"{end - timedelta(seconds=1):%Y-%m-%d}") for begin, end in days]


@pytest.mark.parametrize(
    ("question", "first", "last"),
    [
        ("What did I say yesterday?", "2026-11-19", "2026-11-19"),
        ("Was habe ich gestern gesagt?", "2026-11-19", "2026-11-19"),
        ("the day before yesterday", "2026-11-18", "2026-11-18"),
        ("vorgestern", "2026-11-18", "2026-11-18"),
        ("anything from today", "2026-11-20", "2026-11-20"),
        ("昨天我说了什么", "2026-11-19", "2026-11-19"),
        ("a call last Tuesday", "2026-11-17", "2026-11-17"),
        ("on Friday", "2026-11-13", "2026-11-13"),
        ("letzten Dienstag", "2026-11-17", "2026-11-17"),
        ("mardi", "2026-11-17", "2026-11-17"),
        ("last week", "2026-11-09", "2026-11-15"),
        ("last month", "2026-10-01", "2026-10-31"),
        ("letztes Jahr", "2025-01-01", "2025-12-31"),
        ("in March", "2026-03-01", "2026-03-31"),
        ("im März", "2026-03-01", "2026-03-31"),
        ("in December", "2025-12-01", "2025-12-31"),
        ("3 days ago", "2026-11-17", "2026-11-17"),
        ("vor zwei Tagen", "2026-11-18", "2026-11-18"),
        ("il y a trois jours", "2026-11-17", "2026-11-17"),
        ("two weeks ago", "2026-11-03", "2026-11-09"),
        ("il y a un an", "2025-05-22", "2026-05-21"),
        ("hace una semana", "2026-11-10", "2026-11-16"),
        ("vor einem Jahr", "2025-05-22", "2026-05-21"),
        ("Qu'est-ce que j'ai dit hier ?", "2026-11-19", "2026-11-19"),
        ("De quoi avons-nous parlé hier ?", "2026-11-19", "2026-11-19"),
        ("le rendez-vous d\u2019hier", "2026-11-19", "2026-11-19"),
        ("Hier soir", "2026-11-19", "2026-11-19"),
        ("tu as dit hier que c'est loin", "2026-11-19", "2026-11-19"),
        ("l'appel d'avant-hier", "2026-11-18", "2026-11-18"),
        ("et aujourd\u2019hui ?", "2026-11-20", "2026-11-20"),
        ("en mars", "2026-03-01", "2026-03-31"),
        ("en mayo", "2026-05-01", "2026-05-31"),
        ("seit August", "2026-08-01", "2026-08-31"),
        ("前天天气怎么样", "2026-11-18", "2026-11-18"),
        ("昨日の電話", "2026-11-19", "2026-11-19"),
        ("一昨日の電話", "2026-11-18", "2026-11-18"),
        ("上周我说了什么", "2026-11-09", "2026-11-15"),
        ("三天前天气很好", "2026-11-17", "2026-11-17"),
        ("What did I book on 13 March?", "2026-03-13", "2026-03-13"),
        ("on March 13th, 2025", "2025-03-13", "2025-03-13"),
        ("on the thirteenth of March 2024", "2024-03-13", "2024-03-13"),
        ("on 12 December", "2025-12-12", "2025-12-12"),
        ("on 29 February", "2024-02-29", "2024-02-29"),
        ("2026-03-13", "2026-03-13", "2026-03-13"),
        ("am 13.3.2025", "2025-03-13", "2025-03-13"),
        ("le 13/03/25", "2025-03-13", "2025-03-13"),
        ("in May 2024", "2024-05-01", "2024-05-31"),
        ("my order of May 2024?", "2024-05-01", "2024-05-31"),
        ("in 2024", "2024-01-01", "2024-12-31"),
        ("two years ago", "2024-05-22", "2025-05-21"),
        ("am 13. März", "2026-03-13", "2026-03-13"),
        ("am dreizehnten März 2025", "2025-03-13", "2025-03-13"),
        ("im Mai 2024", "2024-05-01", "2024-05-31"),
        ("vor zwei Jahren", "2024-05-22", "2025-05-21"),
        ("le 1er mai 2024", "2024-05-01", "2024-05-01"),
        ("en mai 2024", "2024-05-01", "2024-05-31"),
        ("mardi dernier", "2026-11-17", "2026-11-17"),
        ("el 13 de marzo de 2025", "2025-03-13", "2025-03-13"),
        ("en mayo de 2024", "2024-05-01", "2024-05-31"),
        ("el martes pasado", "2026-11-17", "2026-11-17"),
        ("il 13 marzo", "2026-03-13", "2026-03-13"),
        ("a maggio 2024", "2024-05-01", "2024-05-31"),
        ("due anni fa", "2024-05-22", "2025-05-21"),
        ("martedì scorso", "2026-11-17", "2026-11-17"),
        ("la settimana scorsa", "2026-11-09", "2026-11-15"),
        ("ieri", "2026-11-19", "2026-11-19"),
        ("no dia 13 de março de 2025", "2025-03-13", "2025-03-13"),
        ("em maio de 2024", "2024-05-01", "2024-05-31"),
        ("há dois anos", "2024-05-22", "2025-05-21"),
        ("dois meses atrás", "2026-09-06", "2026-10-06"),
        ("na última terça-feira", "2026-11-17", "2026-11-17"),
        ("ontem", "2026-11-19", "2026-11-19"),
        ("2024年5月", "2024-05-01", "2024-05-31"),
        ("2025年3月13日", "2025-03-13", "2025-03-13"),
        ("3月13号", "2026-03-13", "2026-03-13"),
        ("两年前", "2024-05-22", "2025-05-21"),
        ("上周二", "2026-11-10", "2026-11-10"),
        ("先週の火曜日", "2026-11-10", "2026-11-10"),
        ("3月13日に", "2026-03-13", "2026-03-13"),
        ("三日前", "2026-11-17", "2026-11-17"),
        ("二年前に", "2024-05-22", "2025-05-21"),
        ("last year in May", "2025-05-01", "2025-05-31"),
        ("in January of last year", "2025-01-01", "2025-01-31"),
        ("on 10 December last year", "2025-12-10", "2025-12-10"),
        ("in May this year", "2026-05-01", "2026-05-31"),
        ("this May", "2026-05-01", "2026-05-31"),
        ("letztes Jahr im Mai", "2025-05-01", "2025-05-31"),
        ("im Mai letzten Jahres", "2025-05-01", "2025-05-31"),
        ("en mai de l'année dernière", "2025-05-01", "2025-05-31"),
        ("en mayo del año pasado", "2025-05-01", "2025-05-31"),
        ("a maggio dell'anno scorso", "2025-05-01", "2025-05-31"),
        ("em maio do ano passado", "2025-05-01", "2025-05-31"),
        ("去年5月", "2025-05-01", "2025-05-31"),
        ("去年の5月に", "2025-05-01", "2025-05-31"),
        ("5月に", "2026-05-01", "2026-05-31"),
        ("Tuesday of last week", "2026-11-10", "2026-11-10"),
        ("letzte Woche am Dienstag", "2026-11-10", "2026-11-10"),
        ("six months ago", "2026-05-02", "2026-06-15"),
        ("Oct 14", "2026-10-14", "2026-10-14"),
        ("おととい", "2026-11-18", "2026-11-18"),
    ],
)
def test_a_time_is_read(question: str, first: str, last: str):
    assert dates_in(question) == [(first, last)]


def test_of_a_year_and_its_month_neither_is_a_time_of_its_own():
    assert dates_in("in May last year, or yesterday?") == [
        ("2026-11-19", "2026-11-19"),
        ("2025-05-01", "2025-05-31"),
    ]
    assert dates_in("last week or in May?") == [("2026-11-09", "2026-11-15"), ("2026-05-01", "2026-05-31")]


def test_half_a_year_is_no_year():
    assert dates_in("half a year ago") == []


def test_of_two_orders_of_day_and_month_both_are_looked_for():
    assert dates_in("3/4/2025") == [("2025-04-03", "2025-04-03"), ("2025-03-04", "2025-03-04")]


@pytest.mark.parametrize(
    "question",
    [
        "",
        "on 31 April",
        "9999-99-99",
        "1 January 2031",
        "May I march in?",
        "Someday",
        "the days of yore",
        "tomorrow",
    ],
)
def test_what_names_no_time_has_none(question: str):
    assert dates_in(question) == []


@pytest.mark.parametrize(
    "question",
    [
        "Ist hier jemand?",
        "Wo ist hier mein Parkplatz?",
        "Ich tu das hier rein, und du hier",
        "Die Tür des Hauses hier, ein guter Ton",
        "Ben je hier? Wat is dit hier, een mes?",
        "Kun je me hier helpen",
        "Is there anyone called Hier?",
    ],
)
def test_hier_is_a_place_where_nobody_speaks_french(question: str):
    assert dates_in(question) == []


@pytest.mark.parametrize(
    "question",
    [
        "I like tuna in mayo, and rum in mai tais",
        "pictures of Mars, and the last Mars bar",
        "At last may I speak?",
        "Where is Mardi Gras, and where Santo Domingo?",
        "Der Stuhl stand vor einem an der Wand",
        "以前天天跑步",
        "过去年间",
        "以上周围",
    ],
)
def test_a_word_that_is_another_one_elsewhere_is_no_time(question: str):
    assert dates_in(question) == []


@pytest.mark.parametrize(
    ("zone", "first"),
    [("UTC", "2026-11-19T00:00"), ("Asia/Tokyo", "2026-11-19T15:00"), ("America/Lima", "2026-11-19T05:00")],
)
def test_a_day_begins_where_the_caller_is(zone: str, first: str):
    late = NOW.replace(hour=16).timestamp()  # in Tokyo it is the day after already
    (span,) = time_ranges("yesterday", late, ZoneInfo(zone))
    assert f"{datetime.fromtimestamp(span.begin, UTC):%Y-%m-%dT%H:%M}" == first


@given(st.text(max_size=60) | st.sampled_from(["99 years ago", "in may in june", "vor 99 jahren, gestern"]))
def test_any_text_is_read_and_a_span_has_begun(question: str):
    for span in time_ranges(question, NOW.timestamp()):
        assert span.begin <= NOW.timestamp() and span.begin < span.end


def test_leap_days_and_january_are_no_trouble():
    for day in (datetime(2028, 2, 29, tzinfo=UTC), datetime(2027, 1, 31, tzinfo=UTC)):
        for question in ("last year", "last month", "in february", "in march", "last week"):
            assert time_ranges(question, day.timestamp())
