"""What is said at the start: where it listens, who answers, and what is missing."""

from pathlib import Path

import pytest

from proxy.commands.serve import greeting
from proxy.settings.load import load

CONFIG = """
{memory}
upstreams: {{main: {{base_url: "practice:"}}}}
pipelines: {{default: {{upstreams: [main]}}}}
"""


@pytest.mark.parametrize(
    ("memory", "said"),
    [
        ("", ["no memory: nothing is remembered; set 'memory:' in the configuration"]),
        (
            "memory: {sessions: 'memory:'}",
            [
                "no archive: sessions are not kept in SQL; set ARCHIVE_URL",
                "sessions are in the server's own process (memory:), and so is background work",
            ],
        ),
        ("memory: {sessions: 'sqlite:a.db', archive: {keep: off}}", ["no archive: it is switched off"]),
        ("memory: {sessions: 'sqlite:a.db'}", []),
    ],
)
def test_what_a_configuration_does_not_remember_is_said(tmp_path: Path, memory: str, said: list[str]):
    (tmp_path / "c.yaml").write_text(CONFIG.format(memory=memory))
    first, model, *rest = greeting(load(tmp_path / "c.yaml", {}), 8080).splitlines()
    assert first.endswith(" on http://127.0.0.1:8080")
    assert model.startswith("  default → the practice model")
    assert len(rest) == len(said)
    assert all(line.startswith(f"  {wanted}") for line, wanted in zip(rest, said, strict=True))
