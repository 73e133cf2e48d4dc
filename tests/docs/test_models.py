"""Every model that the page names can be set as the page says, and `check` has nothing to say of it."""

import re
from pathlib import Path

import pytest

from proxy.settings.load import check_config
from proxy.upstream.providers import PROVIDERS
from tests.conftest import AGORA
from tests.documentation import ROOT

_ROW = re.compile(r"^\| ([^|]+) \| `(http[^`]+)` \| (?:`(\w+)`)? ?\|", re.MULTILINE)
ROWS = _ROW.findall((ROOT / "docs/models.md").read_text())


def problems(environ: dict[str, str], file: Path = AGORA) -> list[str]:
    return [
        str(each) for each in (*check_config(file, environ).errors, *check_config(file, environ).warnings)
    ]


@pytest.mark.parametrize(("vendor", "address", "accepts"), ROWS)
def test_a_model_can_be_set_as_the_page_says(vendor: str, address: str, accepts: str) -> None:
    key = {} if vendor == "Ollama" else {"UPSTREAM_API_KEY": "sk"}
    assert problems({"UPSTREAM_BASE_URL": address, "UPSTREAM_ACCEPTS": accepts, **key}) == []


def test_the_page_names_every_kind_of_model() -> None:
    assert {accepts or "openai" for _, _, accepts in ROWS} == PROVIDERS.keys() - {"any"}
    assert len(ROWS) == 10


@pytest.mark.parametrize(
    ("vendor", "address", "accepts"), [row for row in ROWS if row[2] not in {"", "azure", "vllm"}]
)
def test_without_its_kind_check_says_which_it_is(vendor: str, address: str, accepts: str) -> None:
    (said,) = problems({"UPSTREAM_BASE_URL": address, "UPSTREAM_API_KEY": "sk"})
    assert f"UPSTREAM_ACCEPTS={accepts}" in said
