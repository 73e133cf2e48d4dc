"""The reference of the configuration tells every key, as the settings do."""

import re
from pathlib import Path

from docs.references import settings_reference
from proxy.describe.pages import options
from proxy.describe.schema import model_schema
from proxy.settings.settings import Settings

CONFIG = Path(__file__).parents[3] / "config"
EVERYTHING, SHIPPED = ((CONFIG / f"{name}.yaml").read_text() for name in ("everything", "agora"))
MANUAL = settings_reference(EVERYTHING, SHIPPED)


def test_every_key_has_its_row() -> None:
    for option in options(model_schema(Settings)):
        assert f"| `{option.name.replace('.*', '.NAME')}` |" in MANUAL or f"## {option.name}\n" in MANUAL


def test_no_key_is_left_without_a_word() -> None:
    rows = [line.split(" | ") for line in MANUAL.splitlines() if line.startswith("| `")]
    assert [row[0] for row in rows if not row[-1].strip(" |")] == []


def test_every_variable_of_the_shipped_file_is_told_with_its_key() -> None:
    told = set(re.findall(r"^\| `([A-Z_]+)` \| .* \| `[a-z_.]+` \|$", MANUAL, re.MULTILINE))
    assert told == set(re.findall(r"\$\{([A-Z_]+)", re.sub(r"#.*", "", SHIPPED)))


def test_an_example_is_what_the_file_says_with_the_comment_before_it() -> None:
    for block in re.findall(r"```yaml\n(.*?)\n```", MANUAL, re.DOTALL):
        assert block in EVERYTHING


def test_a_comment_between_two_keys_belongs_to_the_second() -> None:
    written = "# of listen\nlisten: {port: 0}\n\n# of log\nlog: {}\n"
    made = settings_reference(written, "listen: {}")
    assert "```yaml\n# of listen\nlisten: {port: 0}\n```" in made
    assert "```yaml\n# of log\nlog: {}\n```" in made
