"""The commands and configurations on the pages work, and give the output that the pages show."""

import ast
import json
import re
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from proxy.server.routes import Routes
from proxy.settings.load import check_config
from tests.conftest import AGORA
from tests.documentation import PAGES, ROOT, Block, Place, blocks, check_shown, completed, missing, named
from tests.peers.fake_upstream import FakeUpstream
from tests.peers.fake_upstream import answer as status
from tests.proxy_server import ProxyServer, Serve
from tests.remembering import settle

LANGUAGES = {"sh", "python", "yaml", "json", "toml", "text", "diff"}
BLOCKS = [block for page in PAGES for block in blocks(page)]
MADE = {"docs/filters.md", "docs/configuration.md", "docs/metrics.md"}
SECRET = "webhook-secret"
KEY = "choose-a-long-secret"

every_page = pytest.mark.parametrize("page", PAGES, ids=named)


def of(*languages: str) -> Any:
    found = [pytest.param(block, id=block.place) for block in BLOCKS if block.language in languages]
    return pytest.mark.parametrize("block", found)


# --- what is written


@every_page
def test_every_block_says_what_it_is_written_in(page: Path) -> None:
    assert {block.language for block in blocks(page)} <= LANGUAGES


@every_page
def test_a_page_opens_with_what_one_can_do_after_it(page: Path) -> None:
    if (
        page.is_relative_to(ROOT / "docs")
        and page.parent.name != "decisions"
        and named(page) != "docs/page.md"
    ):
        opening = page.read_text().split("\n## ")[0]
        assert "After this page" in opening


@of("yaml")
def test_a_piece_of_yaml_is_a_sound_piece_of_a_configuration(block: Block, tmp_path: Path) -> None:
    for example in (ROOT / "examples/own_filter").glob("*.py"):
        (tmp_path / example.name).write_text(example.read_text())
    for other in blocks(ROOT / block.page):
        if other.file:
            (tmp_path / other.file).write_text(other.text)
    path = tmp_path / "page.yaml"
    path.write_text(completed(block.text))
    assert [str(fault) for fault in check_config(path, {}).errors] == []


@of("json")
def test_a_piece_of_json_is_json(block: Block) -> None:
    json.loads(block.text)


@of("toml")
def test_a_piece_of_toml_is_toml(block: Block) -> None:
    tomllib.loads(block.text)


@of("python")
def test_a_piece_of_python_is_python(block: Block) -> None:
    ast.parse(block.text)


# --- what is done


@pytest.fixture
def place(serve: Serve, tmp_path: Path, page: Path) -> tuple[Place, ProxyServer]:
    """The server is as ``make run`` starts it; before engines, with the key that their pages set."""
    folder = tmp_path / "place"
    folder.mkdir()
    of_engine = page.parent.name == "engines"
    server = serve(
        AGORA,
        UPSTREAM_BASE_URL="practice:",
        MEMORY_URL=f"sqlite:{folder / 'turnkeeper.db'}",
        AGORA_WEBHOOK_SECRET=SECRET,
        TURNKEEPER_KEYS=f"engine:{KEY}" if of_engine else "",
    )
    server.client.headers["Authorization"] = f"Bearer {KEY}"
    return Place(folder, server.root, {} if of_engine else {"AGORA_WEBHOOK_SECRET": SECRET}), server


RUN = [
    page
    for page in PAGES
    if any(b.language in {"sh", "python"} for b in blocks(page)) and named(page) not in MADE
]


@pytest.mark.parametrize("page", RUN, ids=named)
def test_what_a_page_tells_to_do_can_be_done(page: Path, place: tuple[Place, ProxyServer]) -> None:
    """Runs block by block in one folder before one server; a block after a command is its output."""
    here, server = place
    output, left = "", []
    for block in blocks(page):
        if block.file:
            here.carry_out(block)
        elif block.language in {"sh", "python"}:
            packages = list(missing(block)) if block.language == "python" else []
            left += packages
            output = "" if packages else here.carry_out(block)
            settle(server)
            continue
        elif block.language in {"json", "text"} and output:
            check_shown(block, output)
        output = ""
    if left:
        pytest.skip(f"all but what needs {', '.join(sorted(set(left)))}, which is not installed here")


# --- what is told is whole


def test_every_path_that_is_served_has_its_place_in_the_reference() -> None:
    told = set(re.findall(r"`((?:GET|POST|PUT|PATCH|DELETE) /\S*)`", headings(ROOT / "docs/http.md")))
    assert told == {*served(), "POST /v1/chat/completions", "POST /v1/explain", "GET /"} | {
        "POST /pipelines/{name}/v1/chat/completions"
    }


def headings(page: Path) -> str:
    return "\n".join(line for line in page.read_text().splitlines() if line.startswith("#"))


def served() -> Iterator[str]:
    for method, path, _ in Routes(None).table:
        if method != "HEAD":
            yield f"{method} {path.replace(':path', '')}"


@every_page
def test_a_link_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        path, _, anchor = target.partition("#")
        if re.match(r"https?:", target):
            continue
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), target
        if anchor and there.suffix == ".md":
            assert anchor in anchors(there), target


@every_page
def test_a_file_that_a_page_names_is_there(page: Path) -> None:
    told = re.findall(r"`((?:proxy|filters|config|tests|docs|examples)/[\w./-]+)`", page.read_text())
    assert [path for path in told if not (ROOT / path).exists()] == []


def anchors(page: Path) -> set[str]:
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE):
        words = re.sub(r"[^\w\- ]", "", re.sub(r"[`*]", "", heading).lower()).replace(" ", "-")
        found.add(f"{words}-1" if words in found else words)
    return found


def test_every_page_can_be_reached_from_the_index() -> None:
    index = ROOT / "docs/README.md"
    linked = {(index.parent / path).resolve() for path in re.findall(r"\]\(([^)#\s]+)", index.read_text())}
    assert {page for page in PAGES if page.is_relative_to(ROOT / "docs")} - {index} <= linked


def test_every_picture_is_shown() -> None:
    shown = {name for page in PAGES for name in re.findall(r"pages/([\w-]+\.png)", page.read_text())}
    assert {picture.name for picture in (ROOT / "docs" / "pages").iterdir()} == shown


def test_every_dependency_is_explained() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [
        each for name, named in project["optional-dependencies"].items() if name in EXTRAS for each in named
    ]
    names = {re.split(r"[\[>;= ]", each)[0].lower() for each in (*project["dependencies"], *extras)}
    page = (ROOT / "docs/dependencies.md").read_text().lower()
    assert {name for name in names - {"tzdata"} if name not in page} == set()


EXTRAS = {"agora", "encryption", "exact", "mem0", "pdf", "postgres", "traces"}


# --- the dashboard


def test_the_dashboard_asks_for_nothing_that_is_not_measured(serve: Serve, upstream: FakeUpstream) -> None:
    """Every name, with the labels by which it is summed, stands in what a server exposes after some turns."""
    server = serve(EVENTFUL)
    upstream.script = lambda request: status(b"{}", 500)
    for stream in (True, False, False):  # the last is one too many
        server.chat([QUESTION, ANSWER, QUESTION], stream=stream, headers={"X-Session-Id": "s"})
    exposed = exposed_once(server, "turnkeeper_refused_requests_total")
    panels = json.loads((ROOT / "docs/grafana.json").read_text())["panels"]
    for expression in [target["expr"] for panel in panels for target in panel["targets"]]:
        for by, metric in re.findall(r"sum by \(([^)]*)\) \((?:rate\()?(\w+)\{", expression):
            labels = {label.strip() for label in by.split(",") if label.strip()} - {"instance"}
            assert metric in exposed, metric
            assert labels <= exposed[metric], f"{metric} has {exposed[metric]}"


QUESTION = {"role": "user", "content": "Hi"}
ANSWER = {"role": "assistant", "content": "Hello."}
EVENTFUL = """
memory: {sessions: "memory:", summaries: {upstream: main}}
limits: {requests_per_minute: 2}
upstreams:
  main: {base_url: "${UPSTREAM_BASE_URL}"}
  reserve: {base_url: "practice:"}
pipelines:
  default: {upstreams: [main, reserve], request: [repair_history, trim_history: {max_messages: 1}]}
"""


def exposed_once(server: ProxyServer, name: str) -> dict[str, set[str]]:
    """The samples once there is one of this name: turns are counted a moment after they end."""
    end = time.monotonic() + 5
    while name not in (found := samples(server.client.get("/metrics").text)) and time.monotonic() < end:
        time.sleep(0.02)
    return found


def samples(exposition: str) -> dict[str, set[str]]:
    """The labels of each name."""
    found: dict[str, set[str]] = {}
    for name, labels in re.findall(r"^(\w+)(?:\{(.*)\})? \S+$", exposition, re.MULTILINE):
        found.setdefault(name, set()).update(re.findall(r"(\w+)=\"", labels))
    return found
