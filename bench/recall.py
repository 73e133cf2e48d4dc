"""How often recall finds what an answer rests on, and how fast: over long dialogues that you bring.

python -m bench.recall FILE [--url sqlite:PATH] [--misses 10]

FILE is JSON in the form of the LoCoMo set: a list of samples, each with ``conversation`` (``session_1`` and
so on: lists of ``{speaker, dia_id, text}``; ``session_1_date_time`` and so on) and ``qa`` (``{question,
evidence: [dia_id], category}``). Each sample is one person; each of its sessions a session of theirs. A
question is asked a day after the last one.
"""

import argparse
import asyncio
import json
import re
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from proxy.memory.archive.archive import Archive, open_archive
from proxy.memory.archive.records import Query, SearchResult
from proxy.memory.session import Entry, Session
from proxy.memory.stores.codec import Plain
from proxy.memory.stores.store import Key, Owner

CUTS = (5, 10, 20)
TENANT = "bench"
_EVIDENCE = re.compile(r"D\d+:\d+")
_SESSION = re.compile(r"session_(\d+)")
_DATES = ("%I:%M %p on %d %B, %Y", "%I:%M %p on %d %B %Y", "%Y-%m-%d %H:%M", "%Y-%m-%d")
_DAY = 86_400.0


class Answered(NamedTuple):
    """A question, its evidence, what was found, and how long it took in seconds."""

    question: str
    category: str
    evidence: frozenset[str]
    found: Sequence[str]
    took: float

    def recall(self, cut: int) -> float:
        """The share of the evidence among the first ``cut``."""
        return len(self.evidence & set(self.found[:cut])) / len(self.evidence)


class Talk(NamedTuple):
    """One session as the archive gets it, and the name of each line by its turn."""

    key: Key
    session: Session
    names: Mapping[int, str]


def talks(sample: Mapping[str, Any], person: str) -> list[Talk]:
    """The sessions of a sample, in order; the first speaker is the caller."""
    conversation = sample["conversation"]
    numbers = sorted(int(found[1]) for name in conversation if (found := _SESSION.fullmatch(name)))
    caller = conversation.get("speaker_a") or conversation[f"session_{numbers[0]}"][0]["speaker"]
    return [_talk(conversation, person, number, caller) for number in numbers]


def _talk(conversation: Mapping[str, Any], person: str, number: int, caller: str) -> Talk:
    lines = conversation[f"session_{number}"]
    begin = _seconds(str(conversation.get(f"session_{number}_date_time", "")), number)
    entries = tuple(
        Entry(
            role="user" if line["speaker"] == caller else "assistant",
            turn=turn,
            engine_turn=turn,
            content=line["text"],
            recorded_at=begin + 10 * turn,
        )
        for turn, line in enumerate(lines)
    )
    session = Session(entries=entries, user=person, created=begin, next_turn=len(lines))
    names = {turn: line["dia_id"] for turn, line in enumerate(lines)}
    return Talk(Key(TENANT, f"{person}/{number}"), session, names)


def _seconds(written: str, number: int) -> float:
    for form in _DATES:
        try:
            return datetime.strptime(written.strip(), form).replace(tzinfo=UTC).timestamp()
        except ValueError:
            continue
    return 1.6e9 + number * _DAY


async def ask(archive: Archive, sample: Mapping[str, Any], person: str) -> list[Answered]:
    """All questions of a sample that name their evidence."""
    kept = talks(sample, person)
    await asyncio.gather(*(archive.save_session(talk.key, talk.session, as_of=0.0) for talk in kept))
    names = {(talk.key.session, turn): name for talk in kept for turn, name in talk.names.items()}
    now = max(talk.session.created for talk in kept) + _DAY
    answers = []
    for qa in sample["qa"]:
        evidence = frozenset(_EVIDENCE.findall(" ".join(map(str, qa.get("evidence") or ())))) & {
            *names.values()
        }
        if evidence:
            began = time.perf_counter()
            query = Query(text=str(qa["question"]), now=now, limit=max(CUTS))
            found = await archive.search(Owner(TENANT, person), query)
            took = time.perf_counter() - began
            lines = list(_named(found, names))
            answers.append(Answered(qa["question"], str(qa.get("category", "")), evidence, lines, took))
    return answers


def _named(found: Sequence[SearchResult], names: Mapping[tuple[str, int], str]) -> Iterator[str]:
    for one in found:
        if one.session_id is not None and one.turn_id is not None:
            yield names[one.session_id, one.turn_id]


async def measure(samples: Sequence[Mapping[str, Any]], url: str) -> list[Answered]:
    """What comes of all samples, in one archive."""
    archive = open_archive(url, codec=Plain())
    try:
        answers = [await ask(archive, sample, f"person-{i}") for i, sample in enumerate(samples)]
    finally:
        await archive.aclose()
    return [answer for sample in answers for answer in sample]


def table(answers: Sequence[Answered]) -> str:
    """The recall of each category and of all, and how long a search took."""
    groups: dict[str, list[Answered]] = defaultdict(list)
    for answer in answers:
        groups[answer.category].append(answer)
    rows = [("category", "questions", *(f"recall@{cut}" for cut in CUTS))]
    for name, group in [*sorted(groups.items()), ("all", answers)]:
        shares = (100 * sum(one.recall(cut) for one in group) / len(group) for cut in CUTS)
        rows.append((name, str(len(group)), *(f"{share:.1f} %" for share in shares)))
    took = sorted(1000 * answer.took for answer in answers)
    times = ", ".join(f"p{p} {took[min(len(took) - 1, len(took) * p // 100)]:.2f} ms" for p in (50, 95, 99))
    return "\n".join("  ".join(f"{cell:>10}" for cell in row) for row in rows) + f"\nlatency: {times}"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--url", default="", help="another archive than a temporary SQLite file")
    parser.add_argument("--misses", type=int, default=0, help="questions to show of which nothing was found")
    given = parser.parse_args(arguments)
    samples = json.loads(given.file.read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        url = given.url or f"sqlite:{folder}/recall.db"
        answers = asyncio.run(measure(samples if isinstance(samples, list) else [samples], url))
    if not answers:
        parser.error("no question of this file names its evidence")
    print(table(answers))
    for answer in [one for one in answers if not one.recall(max(CUTS))][: given.misses]:
        print(f"missed: {answer.question} ({', '.join(sorted(answer.evidence))})")


if __name__ == "__main__":
    main()
