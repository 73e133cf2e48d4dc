"""config/everything.yaml contains every setting, and works."""

import itertools
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from docs.make import ROOT
from proxy.describe.pages import pages
from proxy.describe.schema import model_schema
from proxy.settings.filter_registry import FilterRegistry
from proxy.settings.load import check_config, load
from proxy.settings.settings import Settings
from tests.peers.fake_upstream import DONE

EVERYTHING = ROOT / "config" / "everything.yaml"
TEXT = EVERYTHING.read_text()
WRITTEN = yaml.safe_load(TEXT)
DEFAULT = WRITTEN["pipelines"]["default"]
SCHEMA = model_schema(Settings)


def test_it_is_without_fault_and_needs_no_environment():
    assert check_config(EVERYTHING, {}).errors == []


@pytest.mark.parametrize(
    ("model", "written"),
    [
        ("Settings", WRITTEN),
        ("ListenSettings", WRITTEN["listen"]),
        ("LogSettings", WRITTEN["log"]),
        ("OpenTelemetrySettings", WRITTEN["opentelemetry"]),
        ("MemorySettings", WRITTEN["memory"]),
        ("LimitSettings", WRITTEN["limits"]),
        ("WindowSettings", WRITTEN["memory"]["window"]),
        ("SummarySettings", WRITTEN["memory"]["summaries"]),
        ("RecallSettings", WRITTEN["memory"]["recall"]),
        ("EmbeddingSettings", WRITTEN["memory"]["recall"]["embeddings"]),
        ("RerankSettings", WRITTEN["memory"]["recall"]["rerank"]),
        ("TraceSettings", WRITTEN["traces"]),
        ("WebhookSettings", WRITTEN["webhooks"]),
        ("AgoraWebhookSettings", WRITTEN["webhooks"]["agora"]),
        ("ArchiveSettings", WRITTEN["memory"]["archive"]),
        ("UpstreamSettings", WRITTEN["upstreams"]["main"]),
        ("PipelineSettings", DEFAULT),
        ("IdentitySettings", DEFAULT["identity"]),
    ],
)
def test_every_key_of_every_section_is_there(model, written):
    part = SCHEMA if model == "Settings" else SCHEMA["$defs"][model]
    assert list(written) == list(part["properties"])


def test_no_section_is_forgotten():
    known = {
        "ListenSettings",
        "LogSettings",
        "OpenTelemetrySettings",
        "LimitSettings",
        "UpstreamSettings",
        "PipelineSettings",
        "IdentitySettings",
        "RequestFilter",
        "AnswerFilter",
        "PipelineTest",
        "MemorySettings",
        "RedactionSettings",
        "WindowSettings",
        "SummarySettings",
        "TraceSettings",
        "WebhookSettings",
        "AgoraWebhookSettings",
        "ArchiveSettings",
        "FactSettings",
        "RecallSettings",
        "EmbeddingSettings",
        "RerankSettings",
    }
    assert set(SCHEMA["$defs"]) == known


@pytest.mark.parametrize(
    "page", pages(FilterRegistry(installed=False)), ids=lambda page: f"{page.side} {page.name}"
)
def test_every_filter_is_on_with_every_option(page):
    steps = [step for step in DEFAULT[page.side] if page.name in step]
    assert steps, f"{page.name} is missing under {page.side}:"
    (step,) = steps
    wanted = [option.name for option in page.options if "." not in option.name]
    assert list((step if isinstance(step, dict) else {page.name: {}})[page.name]) == wanted


def test_each_step_has_a_word_of_advice():
    lines = TEXT.splitlines()
    unadvised = [
        line.strip()
        for above, line in itertools.pairwise(lines)
        if re.match(r"      - (?!name: )", line) and not above.strip().startswith("#")
    ]
    assert unadvised == []


def test_all_that_it_names_is_built():
    pipeline = load(EVERYTHING, {}).pipelines["default"]
    assert len(pipeline.request) == len(DEFAULT["request"])
    assert len(pipeline.answer) == len(DEFAULT["answer"])


def test_no_secret_stands_in_a_shipped_file():
    for path in (ROOT / "config").glob("*.yaml"):
        secrets = list(_secrets(yaml.safe_load(path.read_text())))
        assert [secret for secret in secrets if not re.fullmatch(r"\$\{\w+:-\}", secret)] == []


def _secrets(value: Any) -> Iterator[str]:
    for key, inner in value.items() if isinstance(value, dict) else ():
        if key in {"keys", "api_key", "secret"}:
            yield inner
        yield from _secrets(inner)


def test_a_real_body_passes_through_it(serve, upstream):
    golden = json.loads((ROOT / "tests/golden/dialects/agora_params.json").read_text())
    got = serve(EVERYTHING).client.post(golden["path"], json=golden["body"])
    assert got.status_code == 200
    first, said_aloud = got.content.split(b"\n\n", 1)
    assert b"custom_metadata" in first
    assert b"Hello" in said_aloud
    assert said_aloud.endswith(DONE)
    prompt, said = upstream.last.json["messages"]
    assert prompt["content"].startswith("You are on the phone with u-77.")
    assert said["content"].endswith("hello")
