"""The house rules that a machine can check."""

import ast
import json
import re
import subprocess
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
SOURCES = sorted([*ROOT.glob("proxy/**/*.py"), *ROOT.glob("filters/**/*.py")])
PAGES = sorted([ROOT / "README.md", *ROOT.glob("docs/**/*.md")])
LOCKS = ["requirements.lock", "requirements-test.lock"]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

Function = ast.FunctionDef | ast.AsyncFunctionDef


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


every_source = pytest.mark.parametrize("path", SOURCES, ids=named)
every_lock = pytest.mark.parametrize("lock", LOCKS)


# --- names


def test_each_file_of_tests_has_a_name_of_its_own():
    """Pytest takes two of one name for the same module, and runs neither."""
    files = [path for kind in ("test_*.py", "contract_*.py") for path in ROOT.glob(f"tests/**/{kind}")]
    assert len({path.name for path in files}) == len(files) > 0


@every_source
def test_a_module_is_named_for_what_it_holds(path: Path):
    said = {part.removesuffix("s") for part in re.split(r"[/._]", named(path))}
    assert said.isdisjoint({"util", "helper", "manager", "handler"})


def test_each_file_of_the_quick_tests_is_there():
    listed = (ROOT / "tests/quick.txt").read_text().split()
    assert [name for name in listed if not (ROOT / name).exists()] == []


# --- docstrings


@every_source
def test_what_is_public_says_what_it_is(path: Path):
    assert list(silent(tree_of(path), named(path))) == []


def silent(node: ast.Module | ast.ClassDef | Function, name: str) -> Iterator[str]:
    """Names without a docstring; a module's own is wanted where its name says too little."""
    if not isinstance(node, ast.Module) and ast.get_docstring(node) is None:
        yield name
    if isinstance(node, Function):
        return
    for inner in node.body:
        if isinstance(inner, ast.ClassDef | Function) and not inner.name.startswith("_"):
            yield from silent(inner, f"{name}:{inner.name}")


# --- what code may not do


@every_source
def test_a_task_is_held_by_whoever_started_it(path: Path):
    """The event loop holds tasks weakly: one that nobody holds may vanish before it ends."""
    dropped = [
        node for node in ast.walk(tree_of(path)) if isinstance(node, ast.Expr) and starts_task(node.value)
    ]
    assert [node.lineno for node in dropped] == []


def starts_task(node: ast.expr) -> bool:
    """Whether a task is started; a task group holds its own."""
    if not isinstance(node, ast.Call):
        return False
    called = ast.unparse(node.func)
    return called in {"create_task", "ensure_future"} or bool(
        re.fullmatch(r"(asyncio|.*loop(\(\))?)\.(create_task|ensure_future)", called)
    )


@every_source
def test_a_log_message_ends_without_a_full_stop(path: Path):
    assert [text for text in logged(tree_of(path)) if text.endswith(".")] == []


def logged(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and re.fullmatch(r"(\w+\.)?_?log\.[a-z]+", ast.unparse(node.func)):
            yield from (arg.value for arg in node.args[:1] if isinstance(arg, ast.Constant))


@pytest.mark.parametrize("path", [p for p in SOURCES if p.is_relative_to(ROOT / "filters")], ids=named)
def test_a_filter_neither_reads_nor_writes_nor_runs_text(path: Path):
    forbidden = {"open", "print", "input", "exec", "eval", "compile", "__import__", "breakpoint"}
    called = {
        n.func.id for n in ast.walk(tree_of(path)) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)
    }
    assert called & forbidden == set()


# --- locks


@every_lock
def test_a_lock_names_no_place_to_download_from(lock: str):
    place = re.compile(r"://|^-|^\S+ @ |\b[\w-]+\.(?:org|com|net|io|dev|cn|local|internal)\b")
    assert [line for line in lines_of(lock) if place.search(line)] == []


@every_lock
def test_every_pin_has_a_hash(lock: str):
    entries = re.split(r"\n(?=\S)", (ROOT / lock).read_text().strip())
    assert [entry.split()[0] for entry in entries if "--hash=sha256:" not in entry] == []


@every_lock
def test_a_lock_holds_every_dependency_as_the_project_asks_for_it(lock: str):
    extras = PROJECT["optional-dependencies"]
    asked = [*PROJECT["dependencies"], *extras["build"], *(extras["test"] if "test" in lock else [])]
    pins = pins_of(lock)
    unmet = [
        r
        for r in map(Requirement, asked)
        if not r.specifier.contains(pins.get(canonicalize_name(r.name), "0"))
    ]
    assert [str(r) for r in unmet] == []


def test_tests_run_on_the_very_versions_that_serve():
    assert pins_of("requirements.lock").items() <= pins_of("requirements-test.lock").items()


def pins_of(lock: str) -> dict[str, str]:
    found = (re.match(r"([\w.-]+)==([^\s;\\]+)", line) for line in lines_of(lock))
    return {canonicalize_name(pin[1]): pin[2] for pin in found if pin}


def lines_of(lock: str) -> list[str]:
    return (ROOT / lock).read_text().splitlines()


# --- what no file may name


def test_no_file_names_a_package_registry():
    registry = re.compile(
        r"(pypi|npmjs|pythonhosted|yarnpkg)\.(org|com|io)|//[^/\s]*(registry|artifactory|nexus|devpi|mirror)[^/\s]*\."
    )
    assert list(hits(registry)) == []


def test_no_file_names_a_folder_of_one_machine():
    assert list(hits(re.compile(r"(?<![\w.:/*}-])/(home|root|Users|work|workspace|mnt)/"))) == []


def test_the_node_lock_names_no_place_to_download_from():
    packages = json.loads((ROOT / "tests/clients/node/package-lock.json").read_text())["packages"]
    assert [name for name, package in packages.items() if "resolved" in package] == []


def hits(pattern: re.Pattern[str]) -> Iterator[str]:
    for path in files_of_the_project():
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            if pattern.search(line):
                yield f"{named(path)}:{number}"


def files_of_the_project() -> list[Path]:
    """What is committed or about to be; outside of a clone there is no telling."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git clone: the project's files cannot be told from others")
    command = [
        "git",
        "-c",
        "safe.directory=*",
        "ls-files",
        "-z",
        "--cached",
        "--others",
        "--exclude-standard",
    ]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True).stdout.split("\0")
    return [ROOT / name for name in listed if name and (ROOT / name).is_file()]


# --- what the pages say is so

FENCED = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_what_the_pages_tell_to_make_can_be_made(page: Path):
    told = re.findall(r"(?:^\s*\$? ?|`|&& )make ([a-z][a-z-]*)", code_in(page.read_text()), re.MULTILINE)
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(told) <= set(targets)


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md"], ids=named)
def test_lines_of_prose_have_at_most_120_characters(page: Path):
    """Code and tables are as wide as they are."""
    prose = FENCED.sub(lambda fence: "\n" * fence[0].count("\n"), page.read_text()).splitlines()
    long = [f"{number}: {line}" for number, line in enumerate(prose, 1) if len(line) > 120]
    assert [line for line in long if not re.match(r"\d+: *\|", line)] == []


def code_in(text: str) -> str:
    fenced = [fence[3] for fence in FENCED.finditer(text)]
    return "\n".join([*fenced, *re.findall(r"`[^`\n]+`", FENCED.sub("", text))])


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())
