"""Date expressions in questions: yesterday, last Tuesday, im März, 3 days ago, 昨天."""

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Final, NamedTuple


class TimeRange(NamedTuple):
    """From a time up to another, in seconds since 1970."""

    begin: float
    end: float

    def contains(self, at: float) -> bool:
        """Whether a time lies within."""
        return self.begin <= at < self.end


def time_ranges(question: str, now: float, zone: tzinfo = UTC) -> tuple[TimeRange, ...]:
    """The days, weeks, months and years that a question names, all of them past, counted from ``now``."""
    text = question[:1000].lower().replace("\u2019", "'")
    today = datetime.fromtimestamp(now, zone).replace(hour=0, minute=0, second=0, microsecond=0)
    ranges = ((begin.timestamp(), end.timestamp()) for begin, end in _ranges(text, today))
    return tuple(dict.fromkeys(TimeRange(begin, end) for begin, end in ranges if begin <= now))


def _ranges(text: str, today: datetime) -> Iterator[tuple[datetime, datetime]]:
    day = timedelta(days=1)
    for name in dict.fromkeys(_DAY.findall(text)):
        if name != _HIER or _FRENCH.search(text):
            begin = today - _DAYS_AGO[name] * day
            yield begin, begin + day
    for name in _PERIOD.findall(text):
        yield _last_period(today, _LAST_PERIODS[name])
    for name in _WEEKDAY.findall(text):
        begin = today - ((today.weekday() - _WEEKDAYS[name] - 1) % 7 + 1) * day
        yield begin, begin + day
    for found in _MONTH.finditer(text):
        # The last month of the name; the current one, if it has begun.
        month = _MONTHS[found[found.lastindex or 0]]
        first = today.replace(month=month, day=1, year=today.year - (month > today.month))
        yield first, (first + 31 * day).replace(day=1)
    for ago, pattern in _COUNTED:
        for count, unit in pattern.findall(text) if ago.marker in text else ():
            # Weeks and months are not counted to the day.
            days = ago.units[unit]
            middle = today - (ago.counts.get(count) or int(count)) * days * day
            around = (0 if days == 1 else days // 2) * day
            yield middle - around, middle + around + day


def _last_period(today: datetime, unit: str) -> tuple[datetime, datetime]:
    if unit == "week":
        monday = today - timedelta(days=today.weekday())
        return monday - timedelta(days=7), monday
    if unit == "year":
        first = today.replace(month=1, day=1)
        return first.replace(year=first.year - 1), first
    first = today.replace(day=1)
    return (first - timedelta(days=1)).replace(day=1), first


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
# "may" and "march" are verbs as well, "mars" a planet and "mayo" a sauce: the name of a month counts behind
# certain words of its own language.
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
_MONTHS: Final = _numbered(*(names for _, names in _MONTHS_OF), start=1)
_DAYS_AGO: Final = {
    **dict.fromkeys(("today", "heute", "aujourd'hui", "hoy", "今天", "今日", "오늘"), 0),
    **dict.fromkeys(("yesterday", "last night", "gestern", "hier", "ayer", "昨天", "昨日", "어제"), 1),
    **dict.fromkeys(("day before yesterday", "vorgestern", "avant-hier", "anteayer", "前天", "一昨日"), 2),
}
_LAST_PERIODS: Final = {
    **dict.fromkeys(
        ("last week", "letzte woche", "semaine dernière", "semana pasada", "上周", "先週"), "week"
    ),
    **dict.fromkeys(("last month", "letzten monat", "mois dernier", "mes pasado", "上个月", "先月"), "month"),
    **dict.fromkeys(("last year", "letztes jahr", "année dernière", "año pasado", "去年"), "year"),
}


class _Ago(NamedTuple):
    """How a language counts back: its marker, its pattern, and its words for numbers and units in days."""

    marker: str
    pattern: str
    counts: Mapping[str, int]
    units: Mapping[str, int]


# "an" is a French year and an English article, so that each language counts in its own words.
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
_HIER: Final = "hier"
# "Here" in German and Dutch: it is yesterday where other words of the question are French.
_FRENCH: Final = re.compile(
    r"\b(?:nous|vous|avez|avons|ai|suis|est|était|étais|que|quoi|quel|quelle|où|une|avec|pour|mon|qui|il|elle)\b"
    r"|\b(?:[cjl]|d(?='hier)|n|qu)'[a-zà-ÿœ]"
    r"|\btu (?:as|avais|es|étais|disais|m'|t'|l')|\bje (?:ne|vais|veux|voulais)\b"
    r"|\bhier (?:soir|matin|midi|après-midi|à|au)\b|\b(?:depuis|dès) hier\b"
)
# Names that are parts of other words.
_EXCEPTIONS: Final = {
    "mardi": r"\bmardi\b(?! gras)",
    "domingo": r"(?<!santo )(?<!plácido )(?<!placido )\bdomingo\b",
    "前天": r"(?<![以之天年月周目时钟从提面])前天",
    "上周": r"(?<![以晚早])上周(?![围边])",
    "去年": r"(?<!过)去年",
}
_SPACED: Final = re.compile(r"[a-zà-ÿœ]")


def _one_of(names: Iterable[str]) -> str:
    """A pattern of whole words; in scripts without spaces, of parts of words."""
    return "|".join(
        _EXCEPTIONS.get(name) or (rf"\b{re.escape(name)}\b" if _SPACED.match(name) else re.escape(name))
        for name in sorted(names, key=len, reverse=True)
    )


_DAY: Final = re.compile(f"({_one_of(_DAYS_AGO)})")
_PERIOD: Final = re.compile(f"({_one_of(_LAST_PERIODS)})")
_WEEKDAY: Final = re.compile(f"({_one_of(_WEEKDAYS)})")
_MONTH: Final = re.compile(
    rf"\b(?:{'|'.join(f'(?:{before}) ({_one_of(names.split())})' for before, names in _MONTHS_OF)})"
)
_COUNTED: Final = tuple(
    (one, re.compile(one.pattern.format(rf"\b(\d{{1,2}}|{_one_of(one.counts)}) ({_one_of(one.units)})")))
    for one in _AGO_OF
)
