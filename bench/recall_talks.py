"""Our own conversations with questions, from fixed seeds, in the form that ``bench.recall`` reads.

The halves have different exchanges, names and users, so that what is tuned on one is tested on the other.
"""

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from bench import recall_items as items

HALVES: Final = ("tuning", "held-back")
NOW: Final = datetime(2026, 11, 20, 15, 0, tzinfo=UTC)
"""The time of every question: a Friday."""
_PEOPLE: Final = 14
_OF_EACH: Final = {
    "words": 8,
    "other words": 8,
    "meaning": 10,
    "behind": 8,
    "persona": 6,
    "language": 14,
    "typing error": 4,
}
_TABLES: Final = {
    "words": items.WORDS,
    "other words": items.OTHER_WORDS,
    "meaning": items.MEANING,
    "behind": items.BEHIND,
    "persona": items.PERSONAS,
    "language": items.LANGUAGES,
    "typing error": items.TYPOS,
}
_NAME: Final = re.compile(r"\{(\w+)\}")


class _Question(NamedTuple):
    """Lines of a conversation, some of which are evidence, and a question."""

    kind: str
    lines: tuple[tuple[str, str, bool], ...]
    question: str
    day: datetime | None = None


def samples(half: str) -> list[dict[str, Any]]:
    """Returns a sample for each person of a half."""
    return [_sample(half, number) for number in range(_PEOPLE)]


def _sample(half: str, number: int) -> dict[str, Any]:
    chance = random.Random(f"{half} {number}")
    asked = [*_exchanges(half, chance), *_dates(number, chance), *_numbers(half, chance)]
    days: dict[datetime, list[_Question]] = {}
    usual = [NOW - timedelta(days=chance.randrange(30, 1000), hours=chance.randrange(5)) for _ in range(16)]
    for one in asked:
        days.setdefault(one.day or chance.choice(usual), []).append(one)
    chatter = items.CHATTER.strip().splitlines()
    conversation: dict[str, Any] = {"speaker_a": "caller", "speaker_b": "assistant"}
    qa: list[dict[str, Any]] = []
    for call, (day, parts) in enumerate(sorted(days.items()), 1):
        lines: list[dict[str, str]] = []
        for part in (chance.choice(chatter[:3]), *parts, chance.choice(chatter[3:])):
            if isinstance(part, str):
                part = _exchange("", part + "|", {})  # noqa: PLW2901 - chatter asks nothing
            elif chance.random() < 0.6:
                lines += _lines(call, len(lines), _exchange("", chance.choice(chatter[6:]) + "|", {}))
            first = len(lines)
            lines += _lines(call, first, part)
            evidence = [f"D{call}:{first + i + 1}" for i, line in enumerate(part.lines) if line[2]]
            if part.question:
                qa.append({"question": part.question, "evidence": evidence, "category": part.kind})
        conversation[f"session_{call}"] = lines
        conversation[f"session_{call}_date_time"] = f"{day:%Y-%m-%d %H:%M}"
    quiet = items.SMALL_TALK.strip().splitlines()[HALVES.index(half) :: 2]
    qa += [{"question": chance.choice(quiet), "evidence": [], "category": "small talk"} for _ in range(3)]
    return {
        "sample_id": f"{half}-{number}",
        "conversation": conversation,
        "qa": qa,
        "now": f"{NOW:%Y-%m-%d %H:%M}",
    }


def _lines(call: int, first: int, part: _Question) -> Iterator[dict[str, str]]:
    for place, (speaker, text, _) in enumerate(part.lines, first + 1):
        yield {"speaker": speaker, "dia_id": f"D{call}:{place}", "text": text}


def _exchanges(half: str, chance: random.Random) -> Iterator[_Question]:
    at = HALVES.index(half)
    for kind, count in _OF_EACH.items():
        table = _TABLES[kind].strip().splitlines()[at::2]
        names = {name: chance.sample(pool[at::2], len(pool[at::2])) for name, pool in items.POOLS.items()}
        for item in chance.sample(table, min(count, len(table))):
            names = {name: [*pool[1:], pool[0]] for name, pool in names.items()}
            yield _exchange(kind, item, {name: pool[0] for name, pool in names.items()})


def _exchange(kind: str, item: str, names: Mapping[str, str]) -> _Question:
    talk, _, question = item.partition("|")
    filled = [_NAME.sub(lambda name: names[name[1]], text).strip() for text in (talk, question)]
    first = filled[0].startswith("<")
    parts = [part.strip() for part in filled[0].removeprefix("<").split(">")]
    speakers = ("assistant", "caller") if first else ("caller", "assistant")
    lines = tuple(
        (speakers[i % 2], part.removeprefix("*"), part.startswith("*")) for i, part in enumerate(parts)
    )
    return _Question(kind, lines, filled[1])


def _dates(number: int, chance: random.Random) -> Iterator[_Question]:
    """An event on the same day of three years, and recently; the question names only the time."""
    languages = list(items.WHEN)
    for at in range(3):
        language = languages[(3 * number + at) % len(languages)]
        things = chance.sample(items.THINGS[language].split(","), 5)
        month, day = chance.randrange(1, 11), chance.randrange(2, 28)
        names = items.MONTHS[language].split()
        statement, question = items.YEARLY[language]
        when_month, when_day, when_late = items.WHEN[language]
        for year, thing in zip((2024, 2025, 2026), things[2:], strict=True):
            date = datetime(year, month, day, 10, at, tzinfo=UTC)
            forms = [when_month, when_day, "{iso}"] if year < NOW.year else [when_late]
            when = chance.choice(forms).format(
                month=names[month - 1], year=year, day=day, iso=f"{date:%Y-%m-%d}"
            )
            yield _dated(statement, question, thing, when, date)
        yield _dated(
            statement, question, things[0], items.TWO_YEARS_AGO[language], NOW - timedelta(days=731, hours=at)
        )
        form, weekdays = items.LAST_WEEKDAY[language]
        # A day of last week, as some languages say it, and the last of its name, as the others do.
        ago = timedelta(days=chance.choice((5, 6)), hours=at)
        weekday = weekdays.split()[(NOW - ago).weekday()]
        yield _dated(statement, question, things[1], form.format(weekday), NOW - ago)


def _dated(statement: str, question: str, thing: str, when: str, day: datetime) -> _Question:
    asked = question.format(when=when)
    return _Question(
        "date", (("caller", statement.format(thing=thing), True),), asked[0].upper() + asked[1:], day
    )


def _numbers(half: str, chance: random.Random) -> Iterator[_Question]:
    pool = items.POOLS["man"][HALVES.index(half) :: 2]
    for name in chance.sample(pool, 4):
        area, rest = str(chance.randrange(150, 179)), f"{chance.randrange(10**7):07d}"
        own, asked = chance.sample(_telephone(area, rest), 2)
        line = ("caller", chance.choice((f"{name} can be reached at {own}.", f"Die Nummer ist {own}.")), True)
        yield _Question("number", (line, ("assistant", "Noted.", False)), f"Whose number is {asked}?")
    for thing in chance.sample(("order", "booking", "ticket", "parcel"), 3):
        digits = f"{chance.randrange(10**5):05d}"
        one, two = chance.choice("ABCDEFGH"), chance.choice("KLMNPRST")
        own, asked = chance.sample(_code(one, digits, two), 2)
        line = ("caller", f"My {thing} is {own}.", True)
        yield _Question("number", (line, ("assistant", "Thank you.", False)), f"What about {asked}?")


def _telephone(area: str, rest: str) -> Sequence[str]:
    """A number in writing and in words."""
    whole = f"0{area}{rest}"
    return (
        f"0{area} {rest[:3]} {rest[3:]}",
        whole,
        f"+49 {area} {rest}",
        f"0{area}/{rest}",
        " ".join(whole),
        _in_words(whole, "en"),
        _in_words(whole, "de"),
    )


def _code(one: str, digits: str, two: str) -> Sequence[str]:
    return (
        f"{one}-{digits}-{two}",
        f"{one}{digits}{two}",
        f"{one} {digits} {two}",
        f"{one} {' '.join(digits)} {two}",
        f"{one} {_in_words(digits, 'en')} {two}",
        f"{one} {_in_words(digits, 'de')} {two}",
    )


def _in_words(digits: str, language: str) -> str:
    names = items.DIGITS[language].split()
    return " ".join(names[int(digit)] for digit in digits)
