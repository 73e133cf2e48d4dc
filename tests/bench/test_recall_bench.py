import asyncio
import json
from pathlib import Path

import pytest

from bench import recall

FILE = Path(__file__).with_name("talks.json")


def test_evidence_is_found_on_a_small_set(tmp_path: Path):
    samples = json.loads(FILE.read_text())
    answers = asyncio.run(recall.measure(samples, f"sqlite:{tmp_path / 'recall.db'}"))
    assert len(answers) == 10
    assert sum(answer.recall(5) for answer in answers) / len(answers) >= 0.85


def test_the_table_has_a_row_for_each_category_and_one_for_all(capsys: pytest.CaptureFixture[str]):
    recall.main([str(FILE), "--misses", "3"])
    told = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in told[:5]] == ["category", "1", "2", "3", "all"]
    assert told[0].split()[2:] == ["recall@5", "recall@10", "recall@20"]
    assert told[5].startswith("latency: p50 ")


def test_a_file_without_evidence_is_refused(tmp_path: Path):
    path = tmp_path / "none.json"
    path.write_text(
        json.dumps(
            [{"conversation": {"session_1": [{"speaker": "a", "dia_id": "D1:1", "text": "x"}]}, "qa": []}]
        )
    )
    with pytest.raises(SystemExit):
        recall.main([str(path)])
