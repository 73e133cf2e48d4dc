"""The compose file as it runs: our image and its peers in podman, in a machine within this one.

See ``containers.sh`` for what stands in for the images of a registry.
"""

import os
import re
import shutil
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Self

import httpx2
import pytest

from tests.hosts.network import inside
from tests.peers.fake_upstream import FakeUpstream
from tests.serving_process import children
from tests.waiting import until

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).with_name("containers.sh")
SERVERS = ("server-1", "server-2")
OURS = (*SERVERS, "worker")
CHECKED = ("redis", "postgres", *SERVERS)
"""The services with a health check."""

ITS_OWN = [
    "unshare",
    "--mount",
    "--pid",
    "--fork",
    "--kill-child",
    "--mount-proc",
    "--propagation",
    "private",
]
GATEWAY = "10.89.24.1"
"""This machine's own address in the network ``front``."""


def require_podman() -> None:
    """Skips, and says what is missing."""
    if os.geteuid():
        pytest.skip("only root may make the mounts and networks in which containers run")
    wanted = ["podman", "crun", "unshare", "nsenter", "openssl", "ip"]
    if "BASE_TAR" not in os.environ:
        wanted.append("mmdebstrap")
    missing = [name for name in wanted if not shutil.which(name)]
    missing += [
        name
        for name in ("netavark", "aardvark-dns")
        if not shutil.which(name, path="/usr/lib/podman:/usr/libexec/podman:/usr/local/libexec/podman")
    ]
    if not find_spec("podman_compose"):
        missing.append("podman-compose")
    if missing:
        pytest.skip(
            f"{', '.join(missing)} not installed: the image is not built here, nor the compose file run"
        )


class Model(FakeUpstream):
    """A model on the machine on which the containers run; they reach it by its address there."""

    address = "0.0.0.0"

    def __init__(self, network: Path) -> None:
        super().__init__()
        self._network = network

    @property
    def url(self) -> str:
        return f"http://{GATEWAY}:{self.port}/v1"

    def _run(self) -> None:
        with inside(self._network):
            super()._run()


class Containers:
    """What ``deploy/compose.yaml`` describes, made by the words at its top; all of it is below ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.deploy = folder / "checkout" / "deploy"
        self._environ = {
            **os.environ,
            "CONTAINERS_CONF": str(folder / "containers.conf"),
            "CONTAINERS_STORAGE_CONF": str(folder / "storage.conf"),
            "TMPDIR": str(folder / "tmp"),
        }
        self._left = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as entered:
            entered.callback(shutil.rmtree, self.folder, ignore_errors=True)
            self._build()
            self.process = entered.enter_context(self._machine())
            self.model = entered.enter_context(Model(self.network))
            self._prepare()
            self.up()
            entered.callback(self.compose, "down", "--volumes", "--timeout", "1")
            self._left = entered.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._left.close()

    def _build(self) -> None:
        with (self.folder / "build.log").open("wb") as log:
            command = [*ITS_OWN, "bash", SCRIPT, "build", self.folder, ROOT]
            done = subprocess.run(command, stdout=log, stderr=log, check=False, timeout=900)
        assert done.returncode == 0, (self.folder / "build.log").read_text()[-3000:]

    @contextmanager
    def _machine(self) -> Iterator[int]:
        """The first process of the machine, as this one knows it; with it, all that runs there ends."""
        with subprocess.Popen(
            [*ITS_OWN, "--net", "bash", SCRIPT, "hold", self.folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as holding:
            try:
                assert holding.stdout and holding.stdout.readline()
                (first,) = children(holding.pid)
                yield first
            finally:
                holding.kill()

    def _prepare(self) -> None:
        """The commands at the top of the compose file, but the last."""
        shutil.copytree(ROOT / "deploy", self.deploy, ignore=shutil.ignore_patterns("tls", ".env"))
        top = (self.deploy / "compose.yaml").read_text().partition("services:")[0]
        script = "\n".join(re.findall(r"^#   (.*)$", top, re.MULTILINE))
        script, docker, up = script.rpartition("docker compose")
        assert docker and up.split() == ["-f", "deploy/compose.yaml", "up", "--build"]
        subprocess.run(
            ["sh", "-ec", script], cwd=self.deploy.parent, check=True, capture_output=True, timeout=60
        )
        secrets = self.deploy / ".env"
        self.key = re.search(r"^TURNKEEPER_KEYS=agora:(\S+)$", secrets.read_text(), re.MULTILINE)[1]
        with secrets.open("a") as settings:
            settings.write(f"UPSTREAM_BASE_URL={self.model.url}\n")

    @property
    def network(self) -> Path:
        return Path(f"/proc/{self.process}/ns/net")

    def on(self) -> AbstractContextManager[None]:
        """What this thread opens meanwhile is opened on the machine."""
        return inside(self.network)

    def run(self, *command: str | Path, timeout: float = 120) -> "subprocess.CompletedProcess[str]":
        """A command on the machine."""
        entered = ["nsenter", f"--target={self.process}", "--mount", "--net", "--pid", "--wdns=/", *command]
        return subprocess.run(
            entered, env=self._environ, capture_output=True, text=True, check=False, timeout=timeout
        )

    def podman(self, *arguments: str) -> str:
        done = self.run("podman", *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def compose(self, *arguments: str) -> None:
        files = ["-f", self.deploy / "compose.yaml", "--env-file", self.deploy / ".env"]
        done = self.run(sys.executable, "-m", "podman_compose", *files, *arguments, timeout=240)
        assert done.returncode == 0, done.stderr[-3000:]

    def up(self) -> None:
        """Starts all, as ``docker compose up`` does, and waits until all are healthy and ready."""
        self.compose("up", "--detach", "--no-build")
        # What would ask by a timer is systemd's, which containers have none of here.
        waiting = [name for name in CHECKED if not until(lambda name=name: self.is_healthy(name), 60)]
        assert not waiting, {name: self.log(name)[-2000:] for name in waiting}
        assert until(self.is_ready, 30), {name: self.log(name)[-2000:] for name in (*OURS, "nginx")}

    def is_healthy(self, service: str) -> bool:
        """The opinion of the image's, or of the compose file's, own check."""
        return self.run("podman", "healthcheck", "run", _container(service)).returncode == 0

    def is_ready(self) -> bool:
        with self.on(), self.client() as client:
            try:
                return client.get("https://localhost/readyz?strict=1", timeout=5).status_code == 200
            except httpx2.TransportError:
                return False

    def log(self, service: str) -> str:
        done = self.run("podman", "logs", _container(service))
        return done.stdout + done.stderr

    def in_container(self, service: str, *command: str) -> str:
        return self.podman("exec", _container(service), *command)

    def first_process(self, service: str) -> int:
        """The number that the machine has for a container's first process; 0 where it does not run."""
        return int(self.podman("inspect", _container(service), "--format", "{{.State.Pid}}"))

    def kill(self, service: str) -> int:
        """Ends a container's first process at once; which it was."""
        first = self.first_process(service)
        assert self.run("kill", "-KILL", str(first)).returncode == 0
        return first

    def stop(self, service: str) -> int:
        """Stops a container in its own time; its exit status."""
        self.podman("stop", "--time", "15", _container(service))
        return int(self.podman("inspect", _container(service), "--format", "{{.State.ExitCode}}"))

    def start(self, service: str) -> None:
        self.podman("start", _container(service))
        assert until(lambda: self.is_healthy(service), 60), self.log(service)[-2000:]

    @property
    def trust(self) -> ssl.SSLContext:
        """What trusts the certificate that the compose file's own words make."""
        return ssl.create_default_context(cafile=str(self.deploy / "tls" / "cert.pem"))

    def client(self) -> httpx2.Client:
        headers = {"Authorization": f"Bearer {self.key}"}
        return httpx2.Client(verify=self.trust, headers=headers, timeout=30, trust_env=False)


def _container(service: str) -> str:
    return f"deploy_{service}_1"
