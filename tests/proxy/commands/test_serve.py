"""The greeting of ``serve``: its address, its upstreams, and what is missing."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.commands.serve import greeting, shown_address
from proxy.settings.load import load
from tests.conftest import AGORA
from tests.peers.fake_upstream import FakeUpstream
from tests.serving_process import ServingProcess

CONFIG = """
{memory}
upstreams: {{main: {{base_url: "practice:"}}}}
pipelines: {{default: {{upstreams: [main]}}}}
"""


DAYS = "memory: {sessions: 'sqlite:a.db', archive: {keep: 90d}, window: {ttl: 2h}}"
REAL = """
memory:
  sessions: "redis://:s3cret@cache.test:6379/0"
  archive: {url: "postgresql://me:p%40ss@db.test/turns"}
  summaries: {upstream: main}
  facts: {upstream: small, model: mini}
  recall: {embeddings: {upstream: small, model: embed}}
upstreams:
  main: {base_url: "https://model.test/v1", api_key: k}
  small: {base_url: "https://small.test/v1", api_key: k}
pipelines: {default: {upstreams: [main], request: [inject_summaries, inject_facts]}}
"""


@pytest.mark.parametrize(
    ("memory", "lines"),
    [
        ("", ["no memory: nothing is stored; set 'memory:' in the configuration"]),
        (
            "memory: {sessions: 'memory:'}",
            [
                "sessions: for 30 minutes after their last turn, in the server's own process (memory:)",
                "no archive: sessions are not kept in SQL; set ARCHIVE_URL",
            ],
        ),
        (
            "memory: {sessions: 'sqlite:a.db', archive: {keep: off}}",
            [
                "sessions: for 30 minutes after their last turn, in sqlite:a.db",
                "no archive: it is switched off",
            ],
        ),
        (
            "memory: {sessions: 'sqlite:a.db', facts: {upstream: main}}",
            [
                "sessions: for 30 minutes",
                "archive: every turn in sqlite:a.db, for good (memory.archive.keep)",
                "background: the practice model extracts no facts",
            ],
        ),
        (
            DAYS,
            [
                "sessions: for 2 hours after their last turn, in sqlite:a.db",
                "archive: every turn in sqlite:a.db, for 90 days",
            ],
        ),
    ],
)
def test_a_start_says_what_is_stored_where_and_for_how_long(tmp_path: Path, memory: str, lines: list[str]):
    (tmp_path / "c.yaml").write_text(CONFIG.format(memory=memory))
    first, model, *rest = greeting(load(tmp_path / "c.yaml", {}), 8080).splitlines()
    assert first.endswith(" on http://127.0.0.1:8080")
    assert model.startswith("  default → the practice model")
    assert len(rest) == len(lines)
    assert all(line.startswith(f"  {wanted}") for line, wanted in zip(rest, lines, strict=True))


def test_a_start_says_which_model_is_asked_for_what_and_shows_no_password(tmp_path: Path):
    (tmp_path / "c.yaml").write_text(REAL)
    assert greeting(load(tmp_path / "c.yaml", {}), 8080).splitlines()[1:] == [
        "  default → https://model.test/v1",
        "  sessions: for 30 minutes after their last turn, in redis://cache.test:6379/0",
        "  archive: every turn in postgresql://db.test/turns, for good (memory.archive.keep)",
        "  background: main is asked for summaries (the model that the session last used)",
        "  background: small is asked for facts (mini)",
        "  background: small is asked for embeddings (embed)",
    ]


def test_a_start_says_which_model_stands_in_for_another(tmp_path: Path):
    other = REAL.replace("[main]", "[main, small]")
    assert other != REAL
    (tmp_path / "c.yaml").write_text(other)
    line = greeting(load(tmp_path / "c.yaml", {}), 8080).splitlines()[1]
    assert line.startswith("  default → https://model.test/v1, then https://")


@given(
    st.text("ab:/?@#%.", max_size=12).map(lambda text: f"S3CR{text}ET"),
    st.sampled_from(["redis://:{}@host/0", "postgresql://u:{}@host:1/db", "redis://host/0?password={}"]),
)
def test_no_address_shows_a_password(secret: str, form: str):
    shown = shown_address(form.format(secret))
    assert "S3CR" not in shown
    assert "ET" not in shown


def test_a_start_says_what_check_warns_of(tmp_path: Path, upstream: FakeUpstream):
    environ = {"UPSTREAM_BASE_URL": upstream.url.removesuffix("/v1"), "MEMORY_URL": "memory:"}
    with ServingProcess(tmp_path, AGORA.read_text(), **environ) as serving:
        assert "upstreams.main.base_url: warning: this address has no path" in serving.log
