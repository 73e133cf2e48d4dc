"""The image's promises, as far as they can be tested without a container engine."""

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
import tomllib
import urllib.request
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import dockerfile
import pytest

from tests.peers.redis_server import free_port

ROOT = Path(__file__).parents[1]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
BUILDER, FINAL = dockerfile.read(DOCKERFILE)
BASES = dockerfile.defaults(DOCKERFILE)
IGNORE = (ROOT / ".dockerignore").read_text()
LOCK = (ROOT / "requirements-image.lock").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]

STRANGER = 65534  # nobody, who owns nothing


def test_what_builds_is_left_behind():
    assert re.fullmatch(r"python:3\.\d+-slim@sha256:[0-9a-f]{64}", BASES["BASE"])
    assert BUILDER.base == FINAL.base == "${BASE}"
    assert {each.flags["from"] for each in FINAL.all("COPY") if "from" in each.flags} == {BUILDER.name}


def test_what_is_installed_is_pinned_by_hash():
    installs = [run.rest for run in BUILDER.all("RUN") if "pip install" in run.rest]
    assert all("--require-hashes -r requirements-image.lock" in run or "--no-deps" in run for run in installs)
    assert not any(re.search(r"\bpip\b", run.rest) for run in FINAL.all("RUN"))


@pytest.mark.parametrize("extra", sorted(EXTRAS.keys() - {"bench", "build", "deploy", "mem0", "test"}))
def test_what_a_configuration_may_ask_for_is_there_since_nobody_can_install_it_later(extra: str):
    wanted = {re.match(r"[\w.-]+", each)[0] for each in EXTRAS[extra]}
    assert wanted <= set(re.findall(r"^([\w.-]+)==", LOCK, re.MULTILINE))


def test_what_is_installed_is_of_the_versions_that_are_tested():
    pinned = r"^([\w.-]+)==([\w.]+)"
    tested = dict(re.findall(pinned, (ROOT / "requirements-test.lock").read_text(), re.MULTILINE))
    installed = dict(re.findall(pinned, LOCK, re.MULTILINE))
    assert {name: tested.get(name, version) for name, version in installed.items()} == installed


def test_the_server_is_a_user_with_a_fixed_number_that_is_not_root():
    user, group = FINAL.last("USER").rest.split(":")
    assert int(user) > 0
    assert int(group) > 0


def test_data_is_written_to_a_volume_that_is_the_working_folder():
    assert FINAL.last("VOLUME").rest == FINAL.last("WORKDIR").rest == "/data"


def test_the_port_in_the_environment_is_the_one_exposed():
    assert FINAL.environment["PORT"] == FINAL.last("EXPOSE").rest == "8080"
    assert FINAL.environment["HOST"] == "0.0.0.0"


def test_the_commands_run_without_a_shell_that_would_keep_signals_to_itself():
    assert FINAL.last("CMD").command[0] == "turnkeeper"


def test_the_health_check_starts_no_python():
    assert "python" not in FINAL.last("HEALTHCHECK").rest


def test_the_labels_are_those_of_the_project():
    assert {name.rpartition(".")[2]: value for name, value in FINAL.labels.items()} == {
        "title": "Turnkeeper",
        "description": PROJECT["description"],
        "version": PROJECT["version"],
        "licenses": PROJECT["license"],
    }


def test_the_standard_library_is_compiled_before_anybody_starts(tmp_path):
    """The image's own step, on a copy of the library that has no compiled file."""
    library = tmp_path / "lib"
    left_out = shutil.ignore_patterns("__pycache__", "site-packages", "test", "idlelib", "config-*")
    shutil.copytree(sysconfig.get_path("stdlib"), library, ignore=left_out)
    (step,) = [run.rest for run in FINAL.all("RUN") if "compileall" in run.rest]
    _, *arguments, where = shlex.split(step)
    assert "sysconfig" in where
    subprocess.run([sys.executable, *arguments, library], check=True, capture_output=True)
    compiled = {path.name.split(".")[0] for path in (library / "asyncio/__pycache__").iterdir()}
    assert compiled == {path.stem for path in (library / "asyncio").glob("*.py")}
    assert list((library / "__pycache__").glob("typing.*.pyc"))


@pytest.mark.parametrize("source", BUILDER.sources + FINAL.sources)
def test_what_is_copied_exists_and_is_sent(source: str):
    assert (ROOT / source).exists()
    assert dockerfile.is_sent(source, IGNORE)


STRAY = """
    .env config/.env .git/config turnkeeper.db config/turnkeeper.db-wal key.pem .venv/bin/python
    tests/conftest.py proxy/__pycache__/cli.pyc
"""


@pytest.mark.parametrize("path", STRAY.split())
def test_what_may_hold_a_secret_or_is_of_this_machine_is_not_sent(path: str):
    assert not dockerfile.is_sent(path, IGNORE)


def test_no_secret_is_part_of_the_image():
    set_here = {**BUILDER.environment, **FINAL.environment}
    assert [name for name in set_here if re.search("KEY|SECRET|TOKEN|PASSWORD", name)] == []
    assert [
        each.rest for each in (*BUILDER.instructions, *FINAL.instructions) if each.word in {"ARG", "ADD"}
    ] == []


# --- the command itself, as another user, on a tree that cannot be written


@pytest.fixture(scope="module")
def tree():
    """What the image holds, below a folder that everyone may read and nobody may write."""
    root = Path(tempfile.mkdtemp(prefix="turnkeeper-"))
    try:
        install(root / "site")
        shutil.copytree(ROOT / "config", root / "app/config")
        (root / "data").mkdir()
        close(root)
        yield root
    finally:
        subprocess.run(["chmod", "-R", "u+w", root], check=True)
        shutil.rmtree(root)


def install(site: Path):
    """Builds the project from the copied files alone, and installs the locked packages."""
    with tempfile.TemporaryDirectory() as build:
        for source in BUILDER.sources:
            copy(ROOT / source, Path(build) / source)
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
        subprocess.run([*pip, "--no-index", "--target", site, build], check=True)
    for name in re.findall(r"^([\w.-]+)==", LOCK, re.MULTILINE):
        copy_distribution(name, site)


def copy_distribution(name: str, site: Path):
    """One installed package without its commands; the lock also pins what other systems need."""
    try:
        found = distribution(name)
    except PackageNotFoundError:
        return
    for file in found.files or []:
        if ".." not in file.parts and "__pycache__" not in file.parts:
            copy(Path(found.locate_file(file)), site / file)


def copy(source: Path, target: Path):
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copyfile(source, target)


def close(root: Path):
    subprocess.run(["chmod", "-R", "a+rX,a-w", root], check=True)
    (root / "data").chmod(0o700)
    if os.geteuid() == 0:
        os.chown(root / "data", STRANGER, STRANGER)


@pytest.fixture(scope="module")
def interpreter(tree):
    """A Python of the running one's version that the other user may execute."""
    version = "{}.{}".format(*sys.version_info[:2])
    base = Path(sysconfig.get_config_var("BINDIR"), f"python{version}")
    for path in (base, Path(f"/usr/bin/python{version}"), Path(f"/usr/local/bin/python{version}")):
        if path.exists() and runs(path, tree):
            return path
    pytest.skip(f"no Python {version} that another user may execute: {base} is closed to others")


def runs(python: Path, tree: Path) -> bool:
    probe = [python, "-c", "import ssl, sqlite3, msgspec, pydantic"]
    try:
        done = subprocess.run(
            probe,
            env={"PYTHONPATH": tree / "site"},
            cwd="/",
            capture_output=True,
            check=False,
            **as_stranger(),
        )
    except PermissionError:
        return False
    return done.returncode == 0


def as_stranger() -> dict[str, object]:
    """Runs as another user than root, if this is root."""
    return {"user": STRANGER, "group": STRANGER, "extra_groups": []} if os.geteuid() == 0 else {}


@pytest.fixture(scope="module")
def environment(tree):
    """The image's, but on loopback and a free port."""
    config = tree / FINAL.environment["TURNKEEPER_CONFIG"].lstrip("/")
    place = {"HOST": "127.0.0.1", "PORT": str(free_port()), "TURNKEEPER_CONFIG": str(config)}
    ours = {**place, "TURNKEEPER_KEYS": "phone:secret-of-the-phone"}
    return {
        **FINAL.environment,
        **ours,
        "PATH": "/usr/bin:/bin",
        "PYTHONPATH": str(tree / "site"),
        "TMPDIR": "/tmp",
    }


@pytest.fixture
def server(tree, interpreter, environment):
    with serving(tree, interpreter, environment) as process:
        yield process


@contextlib.contextmanager
def serving(tree: Path, interpreter: Path, environment: dict[str, str]) -> Iterator[subprocess.Popen]:
    process = subprocess.Popen(
        [interpreter, tree / "site/bin/turnkeeper", *FINAL.last("CMD").command[1:]],
        cwd=tree / "data",
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        **as_stranger(),
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_it_serves_as_another_user_on_a_read_only_tree_and_stops_when_told(server, environment):
    assert healthy_within(30, server, environment), output_of(server)
    server.send_signal(signal.SIGTERM)
    assert server.wait(timeout=20) == 0


def test_it_remembers_in_postgresql(tree, interpreter, environment, postgres):
    elsewhere = {**environment, "MEMORY_URL": postgres.url()}
    with serving(tree, interpreter, elsewhere) as server:
        assert healthy_within(30, server, environment), output_of(server)
        ready = f"http://127.0.0.1:{environment['PORT']}/readyz"
        with urllib.request.urlopen(ready) as answer:
            assert json.load(answer) == {"status": "ready", "degraded": []}


OF_MEMORY = [("forget", "ann"), ("export", "ann"), ("documents", "list"), ("documents", "add", "a.md")]


def test_a_command_beside_the_server_finds_its_configuration_and_its_memory(
    server, tree, interpreter, environment
):
    assert healthy_within(30, server, environment), output_of(server)
    document = tree / "data" / "a.md"
    document.write_text("We open at nine.")
    document.chmod(0o644)
    for arguments in OF_MEMORY:
        done = subprocess.run(
            [interpreter, tree / "site/bin/turnkeeper", *arguments],
            cwd=tree / "data",
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
            **as_stranger(),
        )
        assert done.returncode == 0, (arguments, done.stderr)


def test_the_health_check_fails_where_nothing_serves(environment):
    with socket.socket() as bound:  # not listening: it refuses connections, and nobody else can have the port
        bound.bind(("127.0.0.1", 0))
        assert not is_healthy({**environment, "PORT": str(bound.getsockname()[1])})


@pytest.mark.parametrize("answer", [b"HTTP/1.1 503 Service Unavailable\r\n\r\n", b"", None])
def test_the_health_check_fails_where_what_serves_is_not_well(environment, answer):
    with socket.create_server(("127.0.0.1", 0)) as listening:
        place = {**environment, "PORT": str(listening.getsockname()[1])}
        ended = threading.Event()

        def answer_once():
            connection, _ = listening.accept()
            with connection:
                if answer is None:
                    ended.wait(20)  # it has the connection, and says nothing
                else:
                    connection.recv(1000)
                    connection.sendall(answer)

        thread = threading.Thread(target=answer_once)
        thread.start()
        try:
            assert not is_healthy(place)
        finally:
            ended.set()
            thread.join()


def healthy_within(seconds: float, server: subprocess.Popen, environment: dict[str, str]) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end and server.poll() is None:
        if is_healthy(environment):
            return True
        time.sleep(0.1)
    return False


def is_healthy(environment: dict[str, str]) -> bool:
    """The image's own HEALTHCHECK, and its own opinion."""
    # A proxy that nobody answers at: the check must go past it.
    misled = {**environment, "http_proxy": "http://127.0.0.1:9"}
    done = subprocess.run(
        FINAL.last("HEALTHCHECK").command,
        env=misled,
        cwd="/",
        capture_output=True,
        check=False,
        timeout=10,
        **as_stranger(),
    )
    return done.returncode == 0


def output_of(server: subprocess.Popen) -> str:
    server.kill()
    return server.stdout.read().decode()
