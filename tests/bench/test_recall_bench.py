import asyncio
import json
from pathlib import Path

import pytest

from bench import recall, recall_talks

FILE = Path(__file__).with_name("talks.json")


def test_evidence_is_found_on_a_small_set(tmp_path: Path):
    samples = json.loads(FILE.read_text())
    answers = asyncio.run(recall.measure(samples, f"sqlite:{tmp_path / 'recall.db'}"))
    assert len(answers) == 10
    assert sum(answer.recall(5) for answer in answers) / len(answers) >= 0.85


def test_the_table_has_a_row_for_each_category_and_one_for_all(capsys: pytest.CaptureFixture[str]):
    recall.main(["--own", str(FILE), "--misses", "3"])
    told = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in told[:6]] == [FILE.name, "category", "1", "2", "3", "all"]
    assert told[1].split()[2:] == ["recall@5", "recall@10", "recall@20", "told"]
    assert told[6].startswith("latency: p50 ")
    assert told[7].startswith("size: ")


@pytest.mark.parametrize("half", recall_talks.HALVES)
def test_our_own_talks_are_the_same_in_each_run_and_recall_answers_them(half: str, tmp_path: Path):
    samples = recall_talks.samples(half)
    assert samples == recall_talks.samples(half)
    assert sum(len(sample["qa"]) for sample in samples) >= 1000
    answers = asyncio.run(recall.measure(samples[:3], f"sqlite:{tmp_path / 'recall.db'}"))
    # What is only meant takes a model to find.
    with_evidence = [answer for answer in answers if answer.evidence and answer.category != "meaning"]
    assert sum(answer.recall(10) for answer in with_evidence) / len(with_evidence) >= 0.97
    assert all(answer.prompt_share() == 1 for answer in answers if not answer.evidence)


def test_the_halves_share_no_exchange():
    tuning, held_back = (
        {
            question["question"]
            for sample in recall_talks.samples(half)
            for question in sample["qa"]
            if question["category"] not in {"date", "number"}
        }
        for half in recall_talks.HALVES
    )
    assert len(tuning) > 90
    assert tuning.isdisjoint(held_back)
