"""Hosts as network namespaces: a machine for each, on one switch, and nothing beyond."""

import ctypes
import os
import secrets
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Self

import pytest

SCRIPT = Path(__file__).with_name("network.sh")
NEW_NETWORK = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


class Network:
    """So many hosts, from 1 on; it is taken down when it is left."""

    def __init__(self, hosts: int) -> None:
        self.name = f"tk{secrets.token_hex(3)}"
        self.hosts = hosts

    def __enter__(self) -> Self:
        if os.geteuid() or not shutil.which("ip"):
            pytest.skip("hosts are network namespaces, which only root may make, with iproute2")
        command = ["bash", str(SCRIPT), "up", self.name, str(self.hosts)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        if done.returncode:
            pytest.skip(f"network namespaces cannot be made here: {done.stderr.strip()}")
        return self

    def __exit__(self, *_: object) -> None:
        subprocess.run(["bash", str(SCRIPT), "down", self.name], check=True, timeout=60)

    @staticmethod
    def address(host: int) -> str:
        return f"10.77.0.{host}"

    def command(self, host: int, *command: str) -> list[str]:
        """A command as it runs on a host."""
        return ["ip", "netns", "exec", f"{self.name}-{host}", *command]

    def on(self, host: int) -> AbstractContextManager[None]:
        """What this thread opens meanwhile is opened on a host."""
        return inside(Path(f"/run/netns/{self.name}-{host}"))

    def listens(self, host: int, port: int) -> bool:
        """Whether anybody takes connections there."""
        with self.on(host), socket.socket() as client:
            client.settimeout(1)
            return client.connect_ex((self.address(host), port)) == 0

    def cable(self, host: int, state: str) -> None:
        """Pulls a host's cable (``down``), or puts it back (``up``)."""
        command = ["ip", "-n", f"{self.name}-switch", "link", "set", f"port{host}", state]
        subprocess.run(command, check=True, timeout=20)


@contextmanager
def inside(network: Path) -> Iterator[None]:
    """What this thread opens meanwhile is opened in the network namespace of which that is the file."""
    with Path("/proc/thread-self/ns/net").open() as own, network.open() as there:
        _enter(there.fileno())
        try:
            yield
        finally:
            _enter(own.fileno())


def _enter(namespace: int) -> None:
    if _libc.setns(namespace, NEW_NETWORK):
        raise OSError(ctypes.get_errno(), "setns")
