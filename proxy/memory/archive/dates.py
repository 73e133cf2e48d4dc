"""Date expressions in questions: yesterday, on 13 March, im Mai 2024, hace dos años, 上周五, 2026-03-13."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Final, NamedTuple

from proxy.memory.archive.languages import language


class TimeRange(NamedTuple):
    """The times from ``begin`` to before ``end``, in seconds since 1970."""

    begin: float
    end: float

    def contains(self, at: float) -> bool:
        """Whether a time is in the range."""
        return self.begin <= at < self.end


def time_ranges(question: str, now: float, zone: tzinfo = UTC) -> tuple[TimeRange, ...]:
    """Returns the days, weeks, months and years that a question names, all begun by ``now``."""
    text = question[:1000].lower().replace("\u2019", "'")
    today = datetime.fromtimestamp(now, zone).replace(hour=0, minute=0, second=0, microsecond=0)
    # Most questions name no time, so a pattern is tried only if one of its words occurs.
    words = {*_WORDS.findall(text)}
    matches: list[tuple[_Reader, re.Match[str], str]] = []
    for marks, pattern, reader in _READERS:
        if words.isdisjoint(marks):
            continue
        for match in pattern.finditer(text):
            matches.append((reader, match, text))
            # Blanked, so that later patterns do not match a part of it: "May 2024" in "2 May 2024".
            text = f"{text[: match.start()]}{' ' * len(match[0])}{text[match.end() :]}"
    if not matches:
        return ()
    wholes = {unit: end for each in matches for unit, end in _whole(*each, today)}
    parts = {unit for parse, match, _ in matches if (unit := _part_of(parse, match)) in wholes}
    ranges: list[TimeRange] = []
    for parse, match, source in matches:
        if any(unit in parts for unit, _ in _whole(parse, match, source, today)):
            continue
        until = min(today, wholes.get(_part_of(parse, match), today))
        spans = (TimeRange(begin.timestamp(), end.timestamp()) for begin, end in parse(match, until, source))
        ranges += [span for span in spans if span.begin <= now]
    return tuple(dict.fromkeys(ranges))


_Ranges = Iterator[tuple[datetime, datetime]]
_Reader = Callable[[re.Match[str], datetime, str], _Ranges]
_A_DAY: Final = timedelta(days=1)


def _whole(
    reader: _Reader, match: re.Match[str], text: str, today: datetime
) -> Iterator[tuple[str, datetime]]:
    """Yields the unit of a named year or week, and the date from which its parts are counted back."""
    if reader in {_year, _period}:
        for begin, end in reader(match, today, text):
            if (end - begin).days > 31:  # noqa: PLR2004 - more than a month
                yield "year", end - _A_DAY
            elif (end - begin).days == 7:  # noqa: PLR2004 - a week
                yield "week", end


def _part_of(reader: _Reader, match: re.Match[str]) -> str:
    """Returns "week" for a weekday, "year" for a day or month without a year, else an empty string."""
    if reader is _weekday:
        return "week"
    return "year" if reader is _latest_month or (reader is _named_day and not match["year"]) else ""


def _day(year: int, month: int, day: int, today: datetime) -> _Ranges:
    """Yields a day, or nothing for an invalid date."""
    try:
        begin = today.replace(year=year, month=month, day=day)
    except ValueError:
        return
    yield begin, begin + _A_DAY


def _month(year: int, month: int, today: datetime) -> _Ranges:
    first = today.replace(year=year, month=month, day=1)
    yield first, (first + 31 * _A_DAY).replace(day=1)


def _written_day(match: re.Match[str], today: datetime, _: str) -> _Ranges:
    """Yields a day such as 2026-03-13, 13.3.2026 or 13/3/26; with slashes, day and month in both orders."""
    one, two, three = (int(match[i]) for i in (1, 2, 3))
    if one > 31:  # noqa: PLR2004 - no day of a month
        yield from _day(one, two, three, today)
        return
    year = three if three > 99 else 2000 + three  # noqa: PLR2004 - two digits
    yield from _day(year, two, one, today)
    if "/" in match[0] and one != two:
        yield from _day(year, one, two, today)


def _named_day(match: re.Match[str], today: datetime, _: str) -> _Ranges:
    """Yields a day such as 13 March, am 13. März 2025, March 13th or 2024年3月13日."""
    month = match["month"]
    number = _MONTHS.get(month) or int(month)
    day = _ORDINALS.get(match["day"]) or int(match["day"])
    if match["year"]:
        yield from _day(int(match["year"]), number, day, today)
        return
    # The latest one that has begun; 29 February may be eight years ago.
    for year in range(today.year, today.year - 9, -1):
        for begin, end in _day(year, number, day, today):
            if begin <= today:
                yield begin, end
                return


def _named_month(match: re.Match[str], today: datetime, _: str) -> _Ranges:
    """Yields a month such as May 2024, mayo de 2024 or 2024年5月."""
    number = _MONTHS.get(match["month"]) or int(match["month"])
    if 1 <= number <= 12:  # noqa: PLR2004 - the months of a year
        yield from _month(int(match["year"]), number, today)


def _latest_month(match: re.Match[str], today: datetime, _: str) -> _Ranges:
    """Yields the latest month with this name or number; the current month counts."""
    name = match[match.lastindex or 0]
    month = _MONTHS.get(name) or int(name)
    if 1 <= month <= 12:  # noqa: PLR2004 - the months of a year
        yield from _month(today.year - (month > today.month), month, today)


def _year(match: re.Match[str], today: datetime, _: str) -> _Ranges:
    first = today.replace(year=int(match["year"]), month=1, day=1)
    yield first, first.replace(year=first.year + 1)


def _day_ago(match: re.Match[str], today: datetime, text: str) -> _Ranges:
    # "hier" means "here" in German and Dutch.
    if match[0] != "hier" or language(_WORDS.findall(text), text) == "french":
        begin = today - _DAYS_AGO[match[0]] * _A_DAY
        yield begin, begin + _A_DAY


def _weekday(match: re.Match[str], today: datetime, _: str) -> _Ranges:
    """Yields the latest such weekday before ``today``."""
    begin = today - ((today.weekday() - _WEEKDAYS[match[0]] - 1) % 7 + 1) * _A_DAY
    yield begin, begin + _A_DAY


def _weekday_of_last_week(match: re.Match[str], today: datetime, _: str) -> _Ranges:
    name = next(name for name in match.groups() if name)
    begin = today - (today.weekday() + 7 - _CHINESE_DAYS.index(name) % 8) * _A_DAY
    yield begin, begin + _A_DAY


def _period(match: re.Match[str], today: datetime, _: str) -> _Ranges:
    """Yields the last week, month or year, or the current one."""
    unit, last = _PERIODS[match[0]]
    if unit == "week":
        begin = today - timedelta(days=today.weekday())
        yield (begin - 7 * _A_DAY, begin) if last else (begin, begin + 7 * _A_DAY)
    elif unit == "year":
        first = today.replace(month=1, day=1, year=today.year - last)
        yield first, first.replace(year=first.year + 1)
    else:
        month = (today.replace(day=1) - last * _A_DAY).replace(day=1)
        yield month, (month + 31 * _A_DAY).replace(day=1)


def _counted(match: re.Match[str], today: datetime, _: str) -> _Ranges:
    """Yields the day so many days ago; for weeks, months and years, which are inexact, a range around it."""
    count, unit = (word for word in match.groups() if word)
    days = _UNITS[unit]
    ago = (_COUNTS.get(count) or int(count)) * days
    middle = today - ago * _A_DAY
    around = (0 if days == 1 else max(days // 2, ago // 8)) * _A_DAY
    yield middle - around, middle + around + _A_DAY


def _numbered(*languages: str, start: int = 0) -> dict[str, int]:
    return {name: n for names in languages for n, name in enumerate(names.split(), start)}


_WEEKDAYS: Final = _numbered(
    "monday tuesday wednesday thursday friday saturday sunday",
    "montag dienstag mittwoch donnerstag freitag samstag sonntag",
    "lundi mardi mercredi jeudi vendredi samedi dimanche",
    "lunes martes miércoles jueves viernes sábado domingo",
    "lunedì martedì mercoledì giovedì venerdì sabato domenica",
    "segunda-feira terça-feira quarta-feira quinta-feira sexta-feira sábado domingo",
    "星期一 星期二 星期三 星期四 星期五 星期六 星期日",
    "周一 周二 周三 周四 周五 周六 周日",
    "月曜日 火曜日 水曜日 木曜日 金曜日 土曜日 日曜日",
) | {"sonnabend": 5, "星期天": 6}
_CHINESE_DAYS: Final = "一二三四五六日 月火水木金土天"
# "may" and "march" are also verbs, "mars" is a planet and "mayo" a sauce: the name of a month alone counts
# only after certain words of its language.
_MONTHS_OF: Final = (
    (
        r"in|(?<!at )last|this|since|of|during",
        "january february march april may june july august september october november december",
    ),
    (
        r"im|seit|letzten|diesen",
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
    (
        r"a|ad|in|da|lo scorso",
        "gennaio febbraio marzo aprile maggio giugno luglio agosto settembre ottobre novembre dicembre",
    ),
    (
        r"em|desde|no mês de",
        "janeiro fevereiro março abril maio junho julho agosto setembro outubro novembro dezembro",
    ),
)
_SHORT_MONTHS: Final = "jan feb mar apr may jun jul aug sep oct nov dec"
_MONTHS: Final = _numbered(*(names for _, names in _MONTHS_OF), _SHORT_MONTHS, start=1) | {
    "jänner": 1,
    "feber": 2,
}
_ORDINALS: Final = _numbered(
    "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth thirteenth"
    " fourteenth fifteenth sixteenth seventeenth eighteenth nineteenth twentieth twenty-first"
    " twenty-second twenty-third twenty-fourth twenty-fifth twenty-sixth twenty-seventh twenty-eighth"
    " twenty-ninth thirtieth thirty-first",
    "ersten zweiten dritten vierten fünften sechsten siebten achten neunten zehnten elften zwölften"
    " dreizehnten vierzehnten fünfzehnten sechzehnten siebzehnten achtzehnten neunzehnten zwanzigsten"
    " einundzwanzigsten zweiundzwanzigsten dreiundzwanzigsten vierundzwanzigsten fünfundzwanzigsten"
    " sechsundzwanzigsten siebenundzwanzigsten achtundzwanzigsten neunundzwanzigsten dreißigsten"
    " einunddreißigsten",
    start=1,
) | {"premier": 1, "primero": 1, "primo": 1, "primeiro": 1}
_DAYS_AGO: Final = {
    name: days
    for days, names in enumerate(
        (
            "today,this morning,heute,aujourd'hui,hoy,oggi,hoje,今天,今日,오늘",
            "yesterday,last night,gestern,hier,hier soir,hier matin,ayer,ieri,ontem,昨天,昨日,어제",
            "day before yesterday,vorgestern,avant-hier,anteayer,l'altro ieri,anteontem,前天,一昨日,おととい",
        )
    )
    for name in names.split(",")
}
_PERIODS: Final = {
    name: (unit, last)
    for unit, last, names in (
        ("week", True, "last week,letzte woche,vorige woche,semaine dernière,semana pasada,settimana scorsa"),
        ("week", True, "scorsa settimana,semana passada,上周,上星期,先週"),
        ("month", True, "last month,letzten monat,vorigen monat,mois dernier,mes pasado,mese scorso"),
        ("month", True, "scorso mese,mês passado,上个月,上月,先月"),
        (
            "year",
            True,
            "last year,letztes jahr,letzten jahres,voriges jahr,année dernière,an dernier,año pasado",
        ),
        ("year", True, "anno scorso,scorso anno,ano passado,去年"),
        ("week", False, "this week,diese woche,cette semaine,esta semana,questa settimana,这周,本周,今週"),
        ("month", False, "this month,diesen monat,ce mois-ci,este mes,questo mese,este mês,这个月,本月,今月"),
        ("year", False, "this year,dieses jahr,cette année,este año,quest'anno,este ano,今年"),
    )
    for name in names.split(",")
}


class _Ago(NamedTuple):
    """The pattern of "N units ago" in a language, its number words, and its units with their days."""

    pattern: str
    counts: Mapping[str, int]
    units: Mapping[str, int]


def _units(days: str, weeks: str, months: str, years: str) -> dict[str, int]:
    lengths = ((days, 1), (weeks, 7), (months, 30), (years, 365))
    return {name: length for names, length in lengths for name in names.split()}


# Each language has its own words, because "an" is a year in French and an article in English.
_AGO_OF: Final = (
    _Ago(
        r"(?<!half )\b{} ago\b",
        _numbered("one two three four five six seven eight nine ten", start=1) | {"a": 1, "an": 1},
        _units("day days", "week weeks", "month months", "year years"),
    ),
    _Ago(
        r"\bvor {}\b",
        _numbered("einem zwei drei vier fünf sechs sieben acht neun zehn", start=1) | {"einer": 1},
        _units("tag tagen", "woche wochen", "monat monaten", "jahr jahren"),
    ),
    _Ago(
        r"\bil y a {}\b",
        _numbered("un deux trois quatre cinq six sept huit neuf dix", start=1) | {"une": 1},
        _units("jour jours", "semaine semaines", "mois", "an ans année années"),
    ),
    _Ago(
        r"\bhace {}\b",
        _numbered("un dos tres cuatro cinco seis siete ocho nueve diez", start=1) | {"una": 1},
        _units("día días", "semana semanas", "mes meses", "año años"),
    ),
    _Ago(
        r"\b{} fa\b",
        _numbered("un due tre quattro cinque sei sette otto nove dieci", start=1) | {"una": 1},
        _units("giorno giorni", "settimana settimane", "mese mesi", "anno anni"),
    ),
    _Ago(
        r"\bhá {}\b",
        _numbered("um dois três quatro cinco seis sete oito nove dez", start=1) | {"uma": 1, "duas": 2},
        _units("dia dias", "semana semanas", "mês meses", "ano anos"),
    ),
    _Ago(
        r"\b{} atrás\b",
        _numbered("um dois três quatro cinco seis sete oito nove dez", start=1) | {"uma": 1, "duas": 2},
        _units("dia dias", "semana semanas", "mês meses", "ano anos"),
    ),
    _Ago(
        "{}(?:之|以)?前",
        _numbered("一 二 三 四 五 六 七 八 九 十", start=1) | {"两": 2},
        _units("天 日", "周 个星期 星期 個星期 週間", "个月 個月 ヶ月 か月 カ月", "年"),
    ),
)
_COUNTS: Final = {name: n for ago in _AGO_OF for name, n in ago.counts.items()}
_UNITS: Final = {name: days for ago in _AGO_OF for name, days in ago.units.items()}
# Patterns for names that are also parts of other words or names.
_EXCEPTIONS: Final = {
    "mardi": r"\bmardi\b(?! gras)",
    "domingo": r"(?<!santo )(?<!plácido )(?<!placido )\bdomingo\b",
    "前天": r"(?<![以之天年月周目时钟从提面])前天",
    "上周": r"(?<![以晚早])上周(?![围边])",
    "去年": r"(?<!过)去年",
}
_SPACED: Final = re.compile(r"[a-zà-ÿœ]")


def _one_of(names: Iterable[str]) -> str:
    """Returns a pattern of any of the names: of whole words, except in scripts without spaces."""
    ordered = sorted(names, key=len, reverse=True)
    spaced = [re.escape(name) for name in ordered if _SPACED.match(name) and name not in _EXCEPTIONS]
    others = [_EXCEPTIONS.get(name) or re.escape(name) for name in ordered if not _SPACED.match(name)]
    others += [_EXCEPTIONS[name] for name in ordered if _SPACED.match(name) and name in _EXCEPTIONS]
    return "|".join([*others, *([rf"\b(?:{'|'.join(spaced)})\b"] if spaced else [])])


def _ago(one: _Ago) -> str:
    space = " " if _SPACED.match(next(iter(one.units))) else ""
    counts, units = _one_of(one.counts), _one_of(one.units)
    return one.pattern.format(rf"(\d{{1,2}}|{counts}){space}({units})")


_MONTH_NAME: Final = rf"(?P<month>{_one_of(_MONTHS)})"
_DAY_NAME: Final = rf"(?P<day>\b\d{{1,2}}(?!\d)|{_one_of(_ORDINALS)})(?:st\b|nd\b|rd\b|th\b|er\b|\.|º|°)?"
_YEAR_NUMBER: Final = r"(?P<year>(?:19|20)\d\d)(?!\d)"
_OF: Final = r"(?: de[l']?| of|,)?"
_CJK_DAY: Final = rf"(?:{_YEAR_NUMBER}年)?(?P<month>\d{{1,2}})月(?P<day>\d{{1,2}})[日号號]"
# Matches a word in Latin letters, one letter of another script, or the first digit of a number.
_WORDS: Final = re.compile(r"[a-zà-ÿœ]+|[^\W\d_]|(?<!\d)\d")
_DIGITS: Final = frozenset("0123456789")


def _marks(*names: str) -> frozenset[str]:
    """Returns the last word of each name; a text without that word does not contain the name."""
    return frozenset(_WORDS.findall(name)[-1] for name in names)


_MONTH_MARKS: Final = _marks(*_MONTHS)
_READERS: Final = (
    (_DIGITS, re.compile(r"\b((?:19|20)\d\d)[-/.](\d{1,2})[-/.](\d{1,2})\b"), _written_day),
    (_DIGITS, re.compile(r"\b(\d{1,2})[./](\d{1,2})[./]((?:19|20)\d\d|\d\d)\b"), _written_day),
    (_marks("月"), re.compile(_CJK_DAY), _named_day),
    (_MONTH_MARKS, re.compile(rf"{_DAY_NAME}{_OF} {_MONTH_NAME}(?:{_OF} {_YEAR_NUMBER})?"), _named_day),
    (_MONTH_MARKS, re.compile(rf"{_MONTH_NAME} (?:the )?{_DAY_NAME}(?:,? {_YEAR_NUMBER})?"), _named_day),
    (_MONTH_MARKS, re.compile(rf"{_MONTH_NAME}{_OF} {_YEAR_NUMBER}"), _named_month),
    (_marks("月"), re.compile(rf"{_YEAR_NUMBER}年(?P<month>\d{{1,2}})月"), _named_month),
    (
        _DIGITS,
        re.compile(rf"\b(?:in|im jahre?|en|nel|em|since|seit|depuis|desde|during) {_YEAR_NUMBER}\b"),
        _year,
    ),
    (_marks("年"), re.compile(rf"{_YEAR_NUMBER}年"), _year),
    (_marks("月"), re.compile(r"(?<!\d)(\d{1,2})月(?!\d)"), _latest_month),
    *((_marks(*one.units), re.compile(_ago(one)), _counted) for one in _AGO_OF),
    (
        _marks("上", "先"),
        re.compile("上个?(?:周|星期|礼拜)([一二三四五六日天])|先週の?([月火水木金土日])曜"),
        _weekday_of_last_week,
    ),
    (_marks(*_DAYS_AGO), re.compile(_one_of(_DAYS_AGO)), _day_ago),
    (_marks(*_PERIODS), re.compile(_one_of(_PERIODS)), _period),
    (_marks(*_WEEKDAYS), re.compile(_one_of(_WEEKDAYS)), _weekday),
    (
        _MONTH_MARKS,
        re.compile("|".join(rf"\b(?:{before}) ({_one_of(names.split())})" for before, names in _MONTHS_OF)),
        _latest_month,
    ),
)
