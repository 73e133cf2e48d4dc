"""Times that a question speaks of: yesterday, last Tuesday, im März, 3 days ago, 昨天."""

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Final, NamedTuple

# "may" and "march" are verbs as well, "mars" a planet and "mayo" a sauce: a month is one behind a word of its
# own language that says so.
_MONTHS_OF: Final = (
    (
        r"in|(?<!at )last|since|of|during",
        "january february march april may june july august september october november december",
    ),
    (
        r"im|seit|letzten",
        "januar februar märz april mai juni juli august september oktober november dezember",
    ),
    (
        r"en|depuis",
        "janvier février mars avril mai juin juillet août septembre octobre novembre décembre",
    ),
    (
        r"en|desde",
        "enero febrero marzo abril mayo junio julio agosto septiembre octubre noviembre diciembre",
    ),
)
_DAYS_AGO: Final = {
    **dict.fromkeys(("today", "heute", "aujourd'hui", "hoy", "今天", "今日", "오늘"), 0),
    **dict.fromkeys(("yesterday", "last night", "gestern", "hier", "ayer", "昨天", "昨日", "어제"), 1),
    **dict.fromkeys(("day before yesterday", "vorgestern", "avant-hier", "anteayer", "前天", "一昨日"), 2),
}
_BEFORE_THIS: Final = {
    **dict.fromkeys(
        ("last week", "letzte woche", "semaine dernière", "semana pasada", "上周", "先週"), "week"
    ),
    **dict.fromkeys(("last month", "letzten monat", "mois dernier", "mes pasado", "上个月", "先月"), "month"),
    **dict.fromkeys(("last year", "letztes jahr", "année dernière", "año pasado", "去年"), "year"),
}
_HIER: Final = "hier"
# "Here" to Germans and Dutch: it is yesterday where something beside it is French, and no word of theirs.
_FRENCH: Final = re.compile(
    r"\b(?:nous|vous|avez|avons|ai|suis|est|était|étais|que|quoi|quel|quelle|où|une|avec|pour|mon|qui|il|elle)\b"
    r"|\b(?:[cjl]|d(?='hier)|n|qu)'[a-zà-ÿœ]"
    r"|\btu (?:as|avais|es|étais|disais|m'|t'|l')|\bje (?:ne|vais|veux|voulais)\b"
    r"|\bhier (?:soir|matin|midi|après-midi|à|au)\b|\b(?:depuis|dès) hier\b"
)
# What these are not a part of.
_ALONE: Final = {
    "mardi": r"\bmardi\b(?! gras)",
    "domingo": r"(?<!santo )(?<!plácido )(?<!placido )\bdomingo\b",
    "前天": r"(?<![以之天年月周目时钟从提面])前天",
    "上周": r"(?<![以晚早])上周(?![围边])",
    "去年": r"(?<!过)去年",
}
_SPACED: Final = re.compile(r"[a-zà-ÿœ]")
_PARTS: Final = 2


class TimeRange(NamedTuple):
    """From a time up to another, in seconds since 1970."""

    begin: float
    end: float

    def contains(self, at: float) -> bool:
        """Whether a time lies within."""
        return self.begin <= at < self.end


def _numbered(*languages: str, start: int = 0) -> dict[str, int]:
    return {name: n for names in languages for n, name in enumerate(names.split(), start)}


_WEEKDAYS: Final = _numbered(
    "monday tuesday wednesday thursday friday saturday sunday",
    "montag dienstag mittwoch donnerstag freitag samstag sonntag",
    "lundi mardi mercredi jeudi vendredi samedi dimanche",
    "lunes martes miércoles jueves viernes sábado domingo",
    "星期一 星期二 星期三 星期四 星期五 星期六 星期日",
    "月曜日 火曜日 水曜日 木曜日 金曜日 土曜日 日曜日",
)


_MONTHS: Final = _numbered(*(names for _, names in _MONTHS_OF), start=1)


class _Ago(NamedTuple):
    """How a language counts back: what it says of it, in which frame, and its words for numbers and days."""

    said: str
    frame: str
    counts: Mapping[str, int]
    units: Mapping[str, int]


# As "an" is a year to some and a preposition to others, each language counts in its own words.
_AGO_OF: Final = (
    _Ago(
        " ago",
        r"{} ago\b",
        _numbered("one two three four five six seven", start=1) | {"a": 1},
        {"day": 1, "days": 1, "week": 7, "weeks": 7, "month": 30, "months": 30, "year": 365, "years": 365},
    ),
    _Ago(
        "vor ",
        r"\bvor {}",
        _numbered("einem zwei drei vier fünf sechs sieben", start=1) | {"einer": 1},
        {
            "tag": 1,
            "tagen": 1,
            "woche": 7,
            "wochen": 7,
            "monat": 30,
            "monaten": 30,
            "jahr": 365,
            "jahren": 365,
        },
    ),
    _Ago(
        "il y a ",
        r"\bil y a {}",
        _numbered("un deux trois quatre cinq six sept", start=1) | {"une": 1},
        {
            "jour": 1,
            "jours": 1,
            "semaine": 7,
            "semaines": 7,
            "mois": 30,
            "an": 365,
            "ans": 365,
            "années": 365,
        },
    ),
    _Ago(
        "hace ",
        r"\bhace {}",
        _numbered("un dos tres cuatro cinco seis siete", start=1) | {"una": 1},
        {"día": 1, "días": 1, "semana": 7, "semanas": 7, "mes": 30, "meses": 30, "año": 365, "años": 365},
    ),
)


def _any_of(names: Iterable[str]) -> str:
    """A pattern of whole words; of scripts without spaces, of parts of words."""
    return "|".join(_ALONE.get(name) or _word(name) for name in sorted(names, key=len, reverse=True))


def _word(name: str) -> str:
    return rf"\b{re.escape(name)}\b" if _SPACED.match(name) else re.escape(name)


def _one_of(table: Mapping[str, object]) -> re.Pattern[str]:
    return re.compile(f"({_any_of(table)})")


_DAY_NAMED: Final = _one_of(_DAYS_AGO)


_SPAN_NAMED: Final = _one_of(_BEFORE_THIS)


_WEEKDAY: Final = _one_of(_WEEKDAYS)


_MONTH: Final = re.compile(
    rf"\b(?:{'|'.join(f'(?:{behind}) ({_any_of(names.split())})' for behind, names in _MONTHS_OF)})"
)


def _counted(one: _Ago) -> re.Pattern[str]:
    return re.compile(one.frame.format(rf"\b(\d{{1,2}}|{_any_of(one.counts)}) ({_any_of(one.units)})"))


_AGO: Final = tuple((one, _counted(one)) for one in _AGO_OF)


def time_ranges(question: str, now: float, zone: tzinfo = UTC) -> tuple[TimeRange, ...]:
    """The times that a question speaks of, all of them past, as they are counted from ``now``."""
    text = question[:1000].lower().replace("\u2019", "'")
    today = datetime.fromtimestamp(now, zone).replace(hour=0, minute=0, second=0, microsecond=0)
    return tuple(
        dict.fromkeys(
            TimeRange(begin.timestamp(), end.timestamp())
            for begin, end in _found(text, today)
            if begin.timestamp() <= now
        )
    )


def _found(text: str, today: datetime) -> Iterator[tuple[datetime, datetime]]:
    for name in dict.fromkeys(_DAY_NAMED.findall(text)):
        if name == _HIER and not _FRENCH.search(text):
            continue
        yield _days(today, _DAYS_AGO[name])
    for name in _SPAN_NAMED.findall(text):
        yield _before_this(today, _BEFORE_THIS[name])
    for name in _WEEKDAY.findall(text):
        yield _days(today, (today.weekday() - _WEEKDAYS[name] - 1) % 7 + 1)
    for found in _MONTH.finditer(text):
        yield _month(today, _MONTHS[found[found.lastindex or 0]])
    for ago, counted in _AGO:
        for count, unit in counted.findall(text) if ago.said in text else ():
            yield _ago(today, ago.counts.get(count) or int(count), ago.units[unit])


def _days(today: datetime, ago: int) -> tuple[datetime, datetime]:
    begin = today - timedelta(days=ago)
    return begin, begin + timedelta(days=1)


def _before_this(today: datetime, unit: str) -> tuple[datetime, datetime]:
    if unit == "week":
        monday = today - timedelta(days=today.weekday())
        return monday - timedelta(days=7), monday
    if unit == "year":
        first = today.replace(month=1, day=1)
        return first.replace(year=first.year - 1), first
    first = today.replace(day=1)
    return (first - timedelta(days=1)).replace(day=1), first


def _month(today: datetime, month: int) -> tuple[datetime, datetime]:
    """The last one of its name; this very one, if it has begun."""
    first = today.replace(month=month, day=1, year=today.year - (month > today.month))
    return first, (first + timedelta(days=31)).replace(day=1)


def _ago(today: datetime, count: int, days: int) -> tuple[datetime, datetime]:
    """Nobody counts weeks and months to the day."""
    middle = today - timedelta(days=count * days)
    around = timedelta(days=0 if days == 1 else days // _PARTS)
    return middle - around, middle + around + timedelta(days=1)
