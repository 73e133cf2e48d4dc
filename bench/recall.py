"""Measures how often recall finds the evidence for an answer, and how fast.

python -m bench.recall [--half tuning|held-back] [--own FILE] [--url sqlite:PATH] [--crowd 1000] [--misses 10]
    [--embeddings http://127.0.0.1:8001/v1 --model NAME --weight 0.4 --least 0.3]

Without a file it asks our own 2,000 questions (``bench.recall_talks``), half of which are held back from
tuning. FILE is JSON in the form of the LoCoMo set: a list of samples, each with ``conversation``
(``session_1`` and so on: lists of ``{speaker, dia_id, text}``; ``session_1_date_time`` and so on) and ``qa``
(``{question, evidence: [dia_id], category}``; for the category "small talk", nothing should be recalled).
Each sample is one user with all sessions in it. Questions are asked at ``now``, or else a day after the last
session. ``told`` are the items that the filter injects with its defaults, and ``--crowd`` adds other users
with a hundred turns each.
"""

import argparse
import asyncio
import json
import re
import tempfile
import time
import urllib.request
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from bench import recall_talks
from filters.base import Context, Snapshot
from filters.message import Message
from filters.recall import Recall
from proxy.memory.archive.archive import Archive, open_archive
from proxy.memory.archive.embeddings import Embedder
from proxy.memory.archive.recall import RecallReader, Retriever, VectorSearch
from proxy.memory.archive.records import Query, SearchResult, Vector
from proxy.memory.archive.vectors import normalize
from proxy.memory.session import Entry, Session
from proxy.memory.stores.codec import Plain
from proxy.memory.stores.store import Key, Owner
from proxy.settings.memory import EmbeddingSettings

CUTS = (5, 10, 20)
TENANT = "bench"
QUIET = "small talk"
_EVIDENCE = re.compile(r"D\d+:\d+")
_SESSION = re.compile(r"session_(\d+)")
_DATES = ("%I:%M %p on %d %B, %Y", "%I:%M %p on %d %B %Y", "%Y-%m-%d %H:%M", "%Y-%m-%d")
_DAY = 86_400.0
_CROWD_TURNS = 100


class Answered(NamedTuple):
    """A question with its evidence, the search results, the prompt's items and the time in seconds."""

    question: str
    category: str
    evidence: frozenset[str]
    results: Sequence[str]
    prompt: frozenset[str]
    took: float

    def recall(self, cut: int) -> float:
        """The share of the evidence in the first ``cut`` results; without any, whether there are none."""
        return self._share(frozenset(self.results[:cut]) if self.evidence else self.prompt)

    def prompt_share(self) -> float:
        """The share of the evidence in the prompt; without evidence, whether the prompt has no items."""
        return self._share(self.prompt)

    def _share(self, results: frozenset[str]) -> float:
        return len(self.evidence & results) / len(self.evidence) if self.evidence else float(not results)


class Talk(NamedTuple):
    """One session as it is archived, with the name of each line by its turn."""

    key: Key
    session: Session
    names: Mapping[int, str]


def talks(sample: Mapping[str, Any], person: str) -> list[Talk]:
    """Returns the sessions of a sample in order; the first speaker is the caller."""
    conversation = sample["conversation"]
    numbers = sorted(int(results[1]) for name in conversation if (results := _SESSION.fullmatch(name)))
    caller = conversation.get("speaker_a") or conversation[f"session_{numbers[0]}"][0]["speaker"]
    return [_talk(conversation, person, number, caller) for number in numbers]


def _talk(conversation: Mapping[str, Any], person: str, number: int, caller: str) -> Talk:
    lines = conversation[f"session_{number}"]
    begin = _seconds(str(conversation.get(f"session_{number}_date_time", "")), number)
    entries = tuple(
        Entry(
            role="user" if line["speaker"] == caller else "assistant",
            turn=turn,
            turn_id=turn,
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


async def ask(retriever: Retriever, sample: Mapping[str, Any], person: str) -> list[Answered]:
    """Asks the questions of a sample, those without evidence included."""
    kept = talks(sample, person)
    names = {(talk.key.session, turn): name for talk in kept for turn, name in talk.names.items()}
    texts: dict[str, set[str]] = defaultdict(set)
    for talk in kept:
        for entry in talk.session.entries:
            texts[entry.text].add(talk.names[entry.turn])
    now = max(talk.session.created for talk in kept) + _DAY
    if "now" in sample:
        now = _seconds(sample["now"], 0)
    owner = Owner(TENANT, person)
    reader = RecallReader(retriever, deadline=30.0)
    answers = []
    for qa in sample["qa"]:
        written = _EVIDENCE.findall(" ".join(map(str, qa.get("evidence") or ())))
        evidence = frozenset(written) & {*names.values()}
        category = str(qa.get("category", ""))
        if not evidence and category != QUIET:
            continue
        question = str(qa["question"])
        began = time.perf_counter()
        results = await retriever.search(owner, Query(text=question, now=now, limit=max(CUTS)))
        took = time.perf_counter() - began
        lines = list(_names_of(results, names))
        recalled = await reader.search(owner, question, now=now, limit=Recall().limit)
        asked = (Message(role="user", content=question),)
        prompt = Recall().apply(asked, Context(now=now, memory=Snapshot(recalled=recalled)))[-1].text
        prompt = frozenset(
            name for line in prompt.splitlines() for name in texts.get(line.partition(": ")[2], ())
        )
        answers.append(Answered(question, category, evidence, lines, prompt, took))
    return answers


async def save(archive: Archive, sample: Mapping[str, Any], person: str) -> None:
    """Archives the sessions of a sample as those of one user."""
    for talk in talks(sample, person):
        await archive.save_session(talk.key, talk.session, as_of=0.0)


def _names_of(results: Sequence[SearchResult], names: Mapping[tuple[str, int], str]) -> Iterator[str]:
    for one in results:
        if one.session_id is not None and one.turn_id is not None:
            yield names[one.session_id, one.turn_id]


class HttpModel:
    """A model with OpenAI's ``/embeddings``."""

    def __init__(self, url: str, model: str) -> None:
        self.model = model
        self._url = f"{url}/embeddings"

    async def vectors(self, texts: Sequence[str]) -> list[Vector]:
        """Returns a unit vector for each text."""
        return await asyncio.to_thread(self._vectors, texts)

    def _vectors(self, texts: Sequence[str]) -> list[Vector]:
        body = json.dumps({"model": self.model, "input": list(texts)}).encode()
        request = urllib.request.Request(self._url, body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=300) as answer:
            lines = json.load(answer)["data"]
        return [normalize(line["embedding"]) for line in sorted(lines, key=lambda line: line["index"])]


async def measure(
    samples: Sequence[Mapping[str, Any]], url: str, *, crowd: int = 0, vectors: VectorSearch | None = None
) -> list[Answered]:
    """Returns the results of all samples in one archive."""
    archive = open_archive(url, codec=Plain())
    try:
        await _add_crowd(archive, samples, crowd)
        for i, sample in enumerate(samples):
            await save(archive, sample, f"person-{i}")
        if vectors:
            await _embed(archive, vectors.embedder)
        retriever = Retriever(archive, vectors=vectors)
        answers = [await ask(retriever, sample, f"person-{i}") for i, sample in enumerate(samples)]
    finally:
        await archive.aclose()
    return [answer for sample in answers for answer in sample]


async def _embed(archive: Archive, model: Embedder) -> None:
    while texts := await archive.unembedded_texts(model.model, limit=256):
        made = await model.vectors([text.text or "" for text in texts])
        vectors = [(text, vector if text.text else None) for text, vector in zip(texts, made, strict=True)]
        await archive.add_vectors(model.model, vectors)


async def _add_crowd(archive: Archive, samples: Sequence[Mapping[str, Any]], people: int) -> None:
    """Adds other users, each with a hundred turns of a sample."""
    for number in range(people):
        left = _CROWD_TURNS
        for talk in talks(samples[number % len(samples)], f"crowd-{number}"):
            entries = talk.session.entries[:left]
            left -= len(entries)
            if entries:
                await archive.save_session(
                    talk.key, msgspec.structs.replace(talk.session, entries=entries), as_of=0.0
                )


def table(answers: Sequence[Answered]) -> str:
    """Returns the table: recall by category and of all questions with evidence, and the time of a search."""
    groups: dict[str, list[Answered]] = defaultdict(list)
    for answer in answers:
        groups[answer.category].append(answer)
    rows = [("category", "questions", *(f"recall@{cut}" for cut in CUTS), "told")]
    with_evidence = [answer for answer in answers if answer.evidence]
    for name, group in [*sorted(groups.items()), ("all", with_evidence)]:
        shares = [sum(one.recall(cut) for one in group) for cut in CUTS]
        shares.append(sum(one.prompt_share() for one in group))
        rows.append(
            (name, str(len(group)), *(f"{100 * share / max(1, len(group)):.1f} %" for share in shares))
        )
    took = sorted(1000 * answer.took for answer in answers)
    times = ", ".join(f"p{p} {took[min(len(took) - 1, len(took) * p // 100)]:.2f} ms" for p in (50, 95, 99))
    return "\n".join("  ".join(f"{cell:>12}" for cell in row) for row in rows) + f"\nlatency: {times}"


def size(samples: Sequence[Mapping[str, Any]], path: Path) -> str:
    """Returns the size of a file without the text in it."""
    text = sum(
        len(entry.text.encode())
        for i, sample in enumerate(samples)
        for talk in talks(sample, f"person-{i}")
        for entry in talk.session.entries
    )
    return f"size: {path.stat().st_size / text:.1f} times the text of {text / 1000:.0f} kB"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--own", type=Path, metavar="FILE", help="talks and questions of your own")
    parser.add_argument("--half", choices=recall_talks.HALVES, help="one half alone")
    parser.add_argument("--url", default="", help="another archive than a temporary SQLite file")
    parser.add_argument("--crowd", type=int, default=0, help="how many other people the archive has")
    parser.add_argument("--misses", type=int, default=0, help="questions to show of which nothing was found")
    parser.add_argument("--embeddings", metavar="URL", help="a server with /embeddings")
    parser.add_argument("--model", default="default")
    parser.add_argument("--weight", type=float, default=EmbeddingSettings.model_fields["weight"].default)
    parser.add_argument("--least", type=float, default=EmbeddingSettings.model_fields["least"].default)
    options = parser.parse_args(arguments)
    if options.own:
        read = json.loads(options.own.read_text(encoding="utf-8"))
        halves = {options.own.name: read if isinstance(read, list) else [read]}
    else:
        halves = {half: recall_talks.samples(half) for half in recall_talks.HALVES}
    for name, samples in halves.items():
        if options.half in {None, name} or options.own:
            run(parser, name, samples, options)


def run(
    parser: argparse.ArgumentParser,
    name: str,
    samples: Sequence[Mapping[str, Any]],
    options: argparse.Namespace,
) -> None:
    """Prints the results of some samples."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "recall.db"
        vectors = None
        if options.embeddings:
            model = HttpModel(options.embeddings, options.model)
            vectors = VectorSearch(model, options.weight, options.least)
        url = options.url or f"sqlite:{path}"
        answers = asyncio.run(measure(samples, url, crowd=options.crowd, vectors=vectors))
        if not answers:
            parser.error("no question of this file names its evidence")
        print(f"{name}\n{table(answers)}")
        if not options.url and not options.crowd:
            print(size(samples, path))
    for answer in [one for one in answers if one.recall(max(CUTS)) < 1][: options.misses]:
        print(f"missed: {answer.category}: {answer.question} ({', '.join(sorted(answer.evidence))})")


if __name__ == "__main__":
    main()
