"""What users read is in the field's words: commands, errors, the log, metrics, the page and the docs."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from docs.references import metrics_reference
from proxy.cli import app
from tests.test_house import FENCED

ROOT = Path(__file__).parents[1]

TERMS = {
    r"(?m)^#+ *two commands\b": "quick start",
    r"\bsigns? its notices\b": "webhook secret",
    r"\bnotices\b|\b(a|the|no) notice\b": "webhook events",
    r"\balive; ready; figures\b": "liveness, readiness, Prometheus metrics",
    r"\bfigures\b": "metrics",
    r"\bpersons?\b|\bpeople\b": "users",
    r"\bno caller waits for\b": "run background jobs",
    r"\bwritten wrongly\b": "usage error",
    r"\bfaults?\b": "error",
    r"\bthere are: ": "available:",
    r"\bwhole numbers?\b": "integer",
    r"\bthis cannot be '": "invalid value",
    r"\btruth values?\b": "boolean",
    r"(?<!at )(?<!than )\bmost \d": "peak",
    r"\bbeing answered\b": "in flight",
    r"\byet to be written\b": "write queue",
    r"\bleft or superseded\b": "cancelled",
    r"\bwith something left out\b": "degraded",
    r"\bstayed in the prefix\b": "prompt prefix reused",
    r"\bsent as it came\b": "stripped before sending",
    r"\b(is|are) held(?! (back|to|up|by|against|in CI)\b)": "stored",
}
"""What users do not read, and what they read in its place."""

NOT_THEIRS = {"proxy/background", "proxy/memory/archive", "proxy/memory/facts/user_facts.py"}
"""Where texts are prompts for a model, statements for a database, or words of callers."""
EXCEPTIONS = {
    # For who works on the code.
    *("docs/design.md", "docs/tour.md", "docs/glossary.md", "docs/performance.md", "docs/make.py"),
}


def offences(text: str) -> list[str]:
    return [
        f"{match[0]!r}: write {term!r}"
        for pattern, term in TERMS.items()
        for match in re.finditer(pattern, text, re.IGNORECASE)
    ]


def commands() -> Iterator[tuple[str, ...]]:
    for name, command in get_command(app).commands.items():  # type: ignore[attr-defined]
        yield (name,)
        for inner in getattr(command, "commands", ()):
            yield (name, inner)


@pytest.mark.parametrize("command", [(), *commands()], ids=" ".join)
def test_the_help_of_a_command(command: tuple[str, ...]) -> None:
    shown = CliRunner().invoke(app, [*command, "--help"], env={"COLUMNS": "500"}).output
    assert "Usage" in shown
    assert offences(shown) == []


SQL = re.compile(r"\b(SELECT|INSERT|CREATE|DELETE|UPDATE|NOT NULL|ON CONFLICT|WHERE)\b")
MODULES = [
    path
    for folder in ("proxy", "filters", "turnkeeper")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if not any(path.relative_to(ROOT).as_posix().startswith(each) for each in NOT_THEIRS)
]


def test_the_terms_are_recognised() -> None:
    assert len(offences("Take warnings for faults: there are: a, b; one turn is being answered")) == 3
    assert offences("It is held back; a balancer must notice first, at most 3 times") == []


def test_errors_and_messages_of_the_log() -> None:
    assert sum(1 for path in MODULES for _ in _messages(ast.parse(path.read_text()))) > 1000
    wrong = {
        f"{path.relative_to(ROOT)}: {text!r}": found
        for path in MODULES
        for text in _messages(ast.parse(path.read_text()))
        if (found := offences(text))
    }
    assert wrong == {}


def _messages(tree: ast.AST) -> Iterator[str]:
    """The texts of several words in a module that are no docstrings: what is raised, logged or shown."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = set()
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else ():
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                docstrings.add(id(statement.value))
        if isinstance(node, documented) and ast.get_docstring(node):
            docstrings.add(id(node.body[0].value))  # type: ignore[attr-defined]
    texts = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in docstrings]
    for text in (node.value for node in texts):
        if isinstance(text, str) and " " in text.strip() and not SQL.search(text):
            yield text


def test_metrics() -> None:
    assert offences(metrics_reference()) == []


TEMPLATES = sorted((ROOT / "proxy/page/templates").glob("*.html"))


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.name)
def test_the_page(template: Path) -> None:
    text = re.sub(r"\{#.*?#\}|\{%.*?%\}|\{\{.*?\}\}|<[^>]*>", " ", template.read_text(), flags=re.DOTALL)
    assert offences(text) == []


PAGES = [
    page
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    if page.relative_to(ROOT).as_posix() not in EXCEPTIONS and page.parent.name != "decisions"
]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_a_page_of_the_docs(page: Path) -> None:
    assert offences(FENCED.sub("", page.read_text())) == []


CONFIGURATIONS = [*sorted((ROOT / "config").glob("*.yaml")), *sorted((ROOT / "deploy").rglob("*.yaml"))]


@pytest.mark.parametrize("path", CONFIGURATIONS, ids=lambda path: path.name)
def test_the_comments_of_a_configuration(path: Path) -> None:
    assert offences(path.read_text()) == []
