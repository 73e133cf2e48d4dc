"""Three hosts that serve, one with the stores, and one with balancer and model, where callers are."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Self

import httpx2
import pytest

from tests.e2e.test_clocks import ASIDE
from tests.hosts.network import Network
from tests.peers import redis_server
from tests.peers.fake_upstream import FakeUpstream, Received, Step, sse, stream_of
from tests.peers.redis_server import RedisServer
from tests.serving_process import ServingProcess
from tests.waiting import awaited, until

SERVERS, STORES, FRONT = (1, 2, 3), 4, 5
PORT, BALANCER = 8080, 8000
BALANCED = f"http://{Network.address(FRONT)}:{BALANCER}"
WITHOUT_MEMORY = "degraded: memory"
"""What comes of a turn that was answered, and whose host could not read what was said before."""
KEY = {"Authorization": "Bearer secret-of-the-phone"}

CONFIG = """
listen: {host: 0.0.0.0, port: "${PORT}"}
keys: "phone:secret-of-the-phone"
memory:
  sessions: "${MEMORY_URL}"
  deadline: 5s
  window: {max_messages: 400}
upstreams: {main: {base_url: "${UPSTREAM_BASE_URL}"}}
pipelines: {default: {upstreams: [main], request: [repair_history, restore_history]}}
"""

# A turn goes to any host, over a connection of its own; one that cannot be connected is asked of another.
HAPROXY = """
defaults
  mode http
  timeout connect 300ms
  timeout client 60s
  timeout server 60s
  option http-server-close
  http-reuse never
  retries 3
  option redispatch 1
backend turnkeepers
  balance random
  option httpchk GET /readyz
  timeout check 10s
  default-server check inter 500ms fall 3 rise 1
{servers}
frontend calls
  bind {address}:{port}
  default_backend turnkeepers
"""


class Model(FakeUpstream):
    """Answers each turn by its number, and notes what it was shown; it is asked on the front host."""

    address = Network.address(FRONT)

    def __init__(self, network: Network) -> None:
        super().__init__()
        self._network = network
        self.prompts: dict[str, list[str]] = {}
        self.script = self.speak

    def _run(self) -> None:
        with self._network.on(FRONT):
            super()._run()

    def speak(self, request: Received) -> list[Step]:
        shown = [message["content"] for message in request.json["messages"]]
        self.prompts[shown[-1]] = shown
        return sse(stream_of("Heard ", shown[-1]))


class StoreServer(RedisServer):
    """A Redis on the host of the stores."""

    address = Network.address(STORES)

    def __init__(self, *arguments: Any, network: Network, **options: Any) -> None:
        self._network = network
        super().__init__(*arguments, "protected-mode no", **options)

    def command(self, *command: str) -> list[str]:
        return self._network.command(STORES, *command)

    def ask(self, *command: Any) -> Any:
        with self._network.on(STORES):
            return super().ask(*command)


class Host(ServingProcess):
    """A server on a host of its own, whose clock is so many seconds ahead."""

    def __init__(
        self, network: Network, number: int, folder: Path, config: str, skew: float, **environ: str
    ) -> None:
        super().__init__(folder, config, **environ)
        self.network, self.number, self.port = network, number, PORT
        program = [sys.executable, "-c", ASIDE.format(skew=skew)]
        self.command = network.command(number, *program, *self.command[3:])

    @property
    def root(self) -> str:
        return f"http://{self.network.address(self.number)}:{self.port}"

    def readiness(self) -> int | None:
        with self.network.on(self.number):
            return super().readiness()


class Fleet:
    """All of it, for callers who may be served by any host at each turn.

    ``store`` is the kind of the store of sessions, or the address of one that is reached as it is from all
    hosts. ``stores`` are the servers of a Redis, of a Cluster the three primaries first, of a Sentinel the
    primary, its replica and the Sentinel itself. ``changes`` are made in the configuration.
    """

    def __init__(
        self, folder: Path, skews: tuple[float, ...], store: str, changes: Mapping[str, str] | None = None
    ) -> None:
        self._folder, self._skews, self._store = folder, skews, store
        self._config = CONFIG
        for former, new in (changes or {}).items():
            assert former in CONFIG
            self._config = self._config.replace(former, new)
        self._started = ExitStack()
        self.stores: Sequence[RedisServer] = ()

    def __enter__(self) -> Self:
        with ExitStack() as started:
            self.network = started.enter_context(Network(5))
            self._memory = self._started_store(started)
            self.model = started.enter_context(Model(self.network))
            self.hosts = [self._host(started, number) for number in SERVERS]
            assert until(lambda: all(host.is_up() for host in self.hosts), 100), self.logs
            self._run(started, FRONT, self._haproxy(), BALANCER)
            awaited(self.is_balanced, 20)
            self._started = started.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._started.close()

    def _run(self, started: ExitStack, host: int, command: list[str], port: int) -> None:
        with (self._folder / f"{host}-{port}.log").open("wb") as log:
            process = subprocess.Popen(self.network.command(host, *command), stdout=log, stderr=log)
        started.callback(process.wait)
        started.callback(process.terminate)
        assert until(lambda: self.network.listens(host, port)), log.name

    def _started_store(self, started: ExitStack) -> str:
        """The address of the store."""
        make = partial(StoreServer, network=self.network)
        match self._store:
            case "redis":
                self.stores = [started.enter_context(redis_server.closing([make(self._folder)]))[0]]
                return self.stores[0].url
            case "sentinel":
                self.stores = started.enter_context(redis_server.replicated(self._folder, make))
                return f"redis+sentinel://{self.stores[2].address}:{self.stores[2].port}/calls"
            case "cluster":
                self.stores = started.enter_context(
                    redis_server.cluster(self._folder, replicas=True, make=make)
                )
                nodes = ",".join(f"{node.address}:{node.port}" for node in self.stores)
                return f"redis+cluster://{nodes}"
            case url:
                return url

    def _haproxy(self) -> list[str]:
        if not (haproxy := shutil.which("haproxy", path=os.environ.get("PATH", "") + ":/usr/sbin")):
            pytest.skip("haproxy is not installed: no calls are tried behind a balancer here")
        servers = "\n".join(f"  server host{n} {self.network.address(n)}:{PORT}" for n in SERVERS)
        path = self._folder / "haproxy.cfg"
        path.write_text(HAPROXY.format(servers=servers, address=self.network.address(FRONT), port=BALANCER))
        return [haproxy, "-db", "-f", str(path)]

    def _host(self, started: ExitStack, number: int) -> Host:
        folder = self._folder / str(number)
        folder.mkdir()
        skew = self._skews[number - 1]
        environ = {"MEMORY_URL": self._memory, "UPSTREAM_BASE_URL": self.model.url, "TMPDIR": str(folder)}
        host = Host(self.network, number, folder, self._config, skew, **environ)
        host.begin()
        started.push(host)
        return host

    @property
    def logs(self) -> str:
        return "\n".join(host.log[-2000:] for host in self.hosts)

    def is_balanced(self) -> bool:
        """Whether the balancer has found all of them."""
        with self.network.on(FRONT):
            try:
                return all(self._get("/readyz").status_code == 200 for _ in range(6))
            except httpx2.TransportError:
                return False

    def _get(self, path: str) -> httpx2.Response:
        return httpx2.get(BALANCED + path, headers=KEY, timeout=20, trust_env=False)

    def turn(self, session: str, messages: list[dict[str, Any]]) -> str:
        """A turn through the balancer: nothing, ``WITHOUT_MEMORY``, or why there is no whole answer."""
        body = {"model": "fake", "stream": True, "messages": messages}
        try:
            answer = httpx2.post(
                f"{BALANCED}/v1/chat/completions",
                json=body,
                headers={**KEY, "X-Session-Id": session},
                timeout=20,
                trust_env=False,
            )
        except httpx2.TransportError as error:
            return repr(error)
        degraded = answer.headers.get("x-turnkeeper-degraded")
        if answer.status_code == 200 and answer.text.rstrip().endswith("data: [DONE]"):
            return WITHOUT_MEMORY if degraded == "memory" else degraded or ""
        return f"{answer.status_code} degraded={degraded} {answer.text[-200:]}"

    def remembered(self, session: str) -> list[str]:
        with self.network.on(FRONT):
            found = self._get(f"/v1/memory/sessions/{session}")
        return [one["content"] for one in found.json()["contents"]] if found.status_code == 200 else []
