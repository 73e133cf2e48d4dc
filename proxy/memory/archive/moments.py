"""Times that a question speaks of: yesterday, last Tuesday, im März, 3 days ago, 昨天."""

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Final, NamedTuple


class Span(NamedTuple):
    """From a time up to another, in seconds since 1970."""

    begin: float
    end: float

    def holds(self, at: float) -> bool:
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
_MONTHS: Final = _numbered(
    "january february march april may june july august september october november december",
    "januar februar märz april mai juni juli august september oktober november dezember",
    "janvier février mars avril mai juin juillet août septembre octobre novembre décembre",
    "enero febrero marzo abril mayo junio julio agosto septiembre octubre noviembre diciembre",
    start=1,
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
_UNITS: Final = {
    **dict.fromkeys(("days", "day", "tagen", "tag", "jours", "jour", "días", "día"), 1),
    **dict.fromkeys(("weeks", "week", "wochen", "woche", "semaines", "semaine", "semanas", "semana"), 7),
    **dict.fromkeys(("months", "month", "monaten", "monat", "mois", "meses", "mes"), 30),
    **dict.fromkeys(("years", "year", "jahren", "jahr", "années", "ans", "an", "años", "año"), 365),
}
_COUNTS: Final = {
    **_numbered("one two three four five six seven", "einem zwei drei vier fünf sechs sieben", start=1),
    **_numbered("un deux trois quatre cinq six sept", "un dos tres cuatro cinco seis siete", start=1),
    **dict.fromkeys(("a", "an", "einer", "une", "una"), 1),
}
_SPACED: Final = re.compile(r"[a-zà-ÿœ]")


def _any_of(names: Iterable[str]) -> str:
    """A pattern of whole words; of scripts without spaces, of parts of words."""
    longest_first = sorted(names, key=len, reverse=True)
    return "|".join(rf"\b{re.escape(n)}\b" if _SPACED.match(n) else re.escape(n) for n in longest_first)


def _one_of(table: Mapping[str, object]) -> re.Pattern[str]:
    return re.compile(f"({_any_of(table)})")


_COUNT: Final = rf"\b(\d{{1,2}}|{_any_of(_COUNTS)})"
_UNIT: Final = f"({_any_of(_UNITS)})"
_AGO: Final = re.compile(rf"{_COUNT} {_UNIT} ago\b|\b(?:vor|il y a|hace) {_COUNT} {_UNIT}")
_DAY_NAMED: Final = _one_of(_DAYS_AGO)
_SPAN_NAMED: Final = _one_of(_BEFORE_THIS)
_WEEKDAY: Final = _one_of(_WEEKDAYS)
# "may" and "march" are verbs as well: a month is one behind a word that says so.
_MONTH: Final = re.compile(rf"\b(?:in|im|last|since|seit|of|en|during|letzten) ({_any_of(_MONTHS)})")
_PARTS: Final = 2


def spans(question: str, now: float, zone: tzinfo = UTC) -> tuple[Span, ...]:
    """The times that a question speaks of, all of them past, as they are counted from ``now``."""
    text = question[:1000].lower()
    today = datetime.fromtimestamp(now, zone).replace(hour=0, minute=0, second=0, microsecond=0)
    return tuple(
        dict.fromkeys(
            Span(begin.timestamp(), end.timestamp())
            for begin, end in _found(text, today)
            if begin.timestamp() <= now
        )
    )


def _found(text: str, today: datetime) -> Iterator[tuple[datetime, datetime]]:
    for name in _DAY_NAMED.findall(text):
        yield _days(today, _DAYS_AGO[name])
    for name in _SPAN_NAMED.findall(text):
        yield _before_this(today, _BEFORE_THIS[name])
    for name in _WEEKDAY.findall(text):
        yield _days(today, (today.weekday() - _WEEKDAYS[name] - 1) % 7 + 1)
    for name in _MONTH.findall(text):
        yield _month(today, _MONTHS[name])
    for found in _AGO.finditer(text):
        count, unit = [part for part in found.groups() if part][:2]
        yield _ago(today, _COUNTS.get(count) or int(count), _UNITS[unit])


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
