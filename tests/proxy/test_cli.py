import os
import platform
import signal
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

import pytest

from tests import preloaded

PROJECT = Path(__file__).parents[2] / "pyproject.toml"
GOOD = "upstreams: {main: {base_url: 'practice:'}}\npipelines: {default: {upstreams: [main]}}\n"


@pytest.fixture
def turnkeeper(tmp_path):
    def run(*arguments):
        return preloaded.run(*arguments, folder=tmp_path, env=os.environ)

    return run


INTERRUPTED = """
import os, runpy, signal, sys

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == "proxy.cli":
            os.kill(os.getpid(), signal.SIGN)

# A shell tells what it begins in the background to hear nothing of Ctrl-C, and nohup the same of a hang-up.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
sys.meta_path.insert(0, Interrupting())
runpy.run_module("proxy", run_name="__main__")
"""


def interrupted(sign, *arguments):
    """How it ends when ``sign`` comes while it is being loaded."""
    command = [sys.executable, "-c", INTERRUPTED.replace("SIGN", sign.name, 1), *arguments]
    return subprocess.run(command, capture_output=True, check=False, timeout=20)


def test_whoever_changes_his_mind_while_it_is_loaded_sees_no_traceback():
    done = interrupted(signal.SIGINT)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, b"", b"")


@pytest.mark.parametrize("command", ["serve", "worker"])
def test_a_reload_that_comes_while_it_is_loaded_ends_nothing(command):
    done = interrupted(signal.SIGHUP, command, "nowhere.yaml")
    assert (done.returncode, b"nowhere.yaml" in done.stderr) == (1, True)


def test_a_terminal_that_is_closed_ends_what_reads_nothing_again():
    assert interrupted(signal.SIGHUP, "check", "nowhere.yaml").returncode == -signal.SIGHUP


def test_the_command_is_what_python_runs():
    commands = tomllib.loads(PROJECT.read_text())["project"]["scripts"]
    assert commands == {"turnkeeper": "turnkeeper.__main__:main"}


def test_check_names_each_good_file(turnkeeper, tmp_path):
    for name in ("a.yaml", "b.yaml"):
        (tmp_path / name).write_text(GOOD)
    done = turnkeeper("check", "a.yaml", "b.yaml")
    assert (done.returncode, done.stdout, done.stderr) == (0, "a.yaml: ok\nb.yaml: ok\n", "")


def test_check_tells_each_fault_on_a_line_of_its_own(turnkeeper, tmp_path):
    (tmp_path / "a.yaml").write_text(GOOD)
    (tmp_path / "b.yaml").write_text(GOOD + "x: 1\ny: 2\n")
    done = turnkeeper("check", "b.yaml", "none.yaml", "a.yaml")
    assert (done.returncode, done.stderr) == (1, "")
    assert [line.split(": ")[:2] for line in done.stdout.splitlines()] == [
        ["b.yaml:3", "x"],
        ["b.yaml:4", "y"],
        ["none.yaml:1", "document"],
        ["a.yaml", "ok"],
    ]


def test_a_file_of_any_name_is_checked(tmp_path):
    name = os.fsdecode(b"\xff \xc3\xa4.yaml")
    (tmp_path / name).write_text(GOOD)
    done = process(tmp_path, ["check", name], subprocess.PIPE)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"\xff \xc3\xa4.yaml: ok\n", b"")


@pytest.mark.parametrize("host", ["a..b", "x" * 64])
def test_a_host_that_cannot_be_looked_up_is_told_by_its_variable(turnkeeper, tmp_path, monkeypatch, host):
    (tmp_path / "a.yaml").write_text(GOOD.replace("practice:", "http://h/v1"))
    monkeypatch.setenv("HTTP_PROXY", f"http://{host}:1")
    done = turnkeeper("serve", "a.yaml")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "HTTP_PROXY in the environment: write http://HOST:PORT\n"


@pytest.mark.parametrize("arguments", [("check",), ("chek", "a.yaml"), ("--versio",)])
def test_wrong_usage_is_exit_code_2(turnkeeper, arguments):
    done = turnkeeper(*arguments)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_a_malformed_proxy_in_the_environment_is_told(turnkeeper, tmp_path, monkeypatch):
    (tmp_path / "a.yaml").write_text(GOOD.replace("practice:", "http://model.test/v1"))
    monkeypatch.setenv("http_proxy", "http://[")
    done = turnkeeper("serve", "a.yaml")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "HTTP_PROXY in the environment: write http://HOST:PORT\n"


def test_the_version_is_told(turnkeeper):
    done = turnkeeper("--version")
    assert (done.returncode, done.stdout.split()[0]) == (0, "turnkeeper")


def test_the_version_says_which_build_of_the_interpreter_runs(turnkeeper):
    said = turnkeeper("--version").stdout
    assert f"(CPython {platform.python_version()}" in said
    optimised = "--enable-optimizations" in (sysconfig.get_config_var("CONFIG_ARGS") or "")
    assert ("no --enable-optimizations recorded" not in said) == optimised


OF_ONE_CONFIGURATION = [
    ("serve",),
    ("worker",),
    ("forget", "ann"),
    ("export", "ann"),
    ("documents", "list"),
    ("documents", "remove", "a"),
    ("documents", "add", "a"),
]


@pytest.mark.parametrize("arguments", OF_ONE_CONFIGURATION, ids=" ".join)
def test_the_environment_names_the_configuration_that_a_command_is_for(
    turnkeeper, tmp_path, monkeypatch, arguments
):
    (tmp_path / "mine.yaml").write_text(GOOD + "x: 1\n")
    monkeypatch.setenv("TURNKEEPER_CONFIG", "mine.yaml")
    done = turnkeeper(*arguments)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("mine.yaml:3: x: ")


@pytest.mark.parametrize("arguments", OF_ONE_CONFIGURATION, ids=" ".join)
def test_a_configuration_that_is_not_where_it_is_sought_is_told_with_how_to_name_it(
    turnkeeper, monkeypatch, arguments
):
    monkeypatch.setenv("TURNKEEPER_CONFIG", "none.yaml")
    done = turnkeeper(*arguments)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("none.yaml:1: document: the file cannot be read: ")
    assert "TURNKEEPER_CONFIG" in done.stderr


TELLING = [("check", "a.yaml"), ("filters",), ("test", "a.yaml"), ("schema",)]


def telling(folder, arguments, out):
    (folder / "a.yaml").write_text(GOOD)
    return process(folder, arguments, out)


def process(folder, arguments, out):
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-m", "proxy", *arguments]
    return subprocess.run(
        command, cwd=folder, env=environ, stdout=out, stderr=subprocess.PIPE, check=False, timeout=20
    )


@pytest.mark.parametrize("arguments", TELLING, ids=" ".join)
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_a_full_disk_behind_a_command_is_told_in_a_line(tmp_path, arguments):
    with Path("/dev/full").open("wb") as full:
        done = telling(tmp_path, arguments, full)
    said = b"The output cannot be written: No space left on device\n"
    assert (done.returncode, done.stderr) == (1, said)


@pytest.mark.parametrize("arguments", TELLING[:2], ids=" ".join)
def test_whoever_no_longer_reads_sees_no_traceback(tmp_path, arguments):
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "wb") as pipe:  # noqa: PTH123 - it is a descriptor
        done = telling(tmp_path, arguments, pipe)
    assert (done.returncode, done.stderr) == (1, b"")


@pytest.mark.parametrize("command", ["explain", "init", "filters"])
def test_what_a_command_takes_stands_in_capitals(turnkeeper, command):
    (usage,) = [line for line in turnkeeper(command, "--help").stdout.splitlines() if "Usage: " in line]
    taken = usage.split("[OPTIONS]")[1].strip()
    assert taken == taken.upper() != ""
