"""The example configurations of proxies, run with the installed programs."""

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trustme
import yaml

from tests.peers.fake_upstream import DONE, HANG, HEAD, ROLE, FakeUpstream, chunk, delta
from tests.peers.redis_server import free_port
from tests.proxy_server import Serve
from tests.waiting import awaited, until

DEPLOY = Path(__file__).parents[2] / "deploy"
SERVERS = ("server-1", "server-2")


def program(name: str) -> str:
    places = [str(Path(sys.executable).parent), os.environ.get("PATH", ""), "/usr/sbin"]
    found = shutil.which(name, path=os.pathsep.join(places))
    if not found:
        pytest.skip(f"{name} is not installed: nothing tries deploy/ with it here")
    return found


class Front:
    """One of them in front of two servers of which the second is down."""

    def __init__(self, folder: Path, server: int, tls: trustme.LeafCert, closed: int) -> None:
        self.port = free_port()
        self.folder = folder
        self.addresses = dict(zip(SERVERS, (f"127.0.0.1:{server}", f"127.0.0.1:{closed}"), strict=True))
        tls.private_key_pem.write_to_path(folder / "key.pem")
        for pem in tls.cert_chain_pems:
            pem.write_to_path(folder / "cert.pem", append=True)

    def nginx(self) -> list[str]:
        text = self.at_its_addresses("nginx.conf").replace("listen 443", f"listen 127.0.0.1:{self.port}")
        (self.folder / "front.conf").write_text(text.replace("/etc/nginx/tls", str(self.folder)))
        kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        places = "".join(f"{kind}_temp_path {self.folder}/{kind};\n" for kind in kinds)
        user = "user root;" if os.geteuid() == 0 else ""  # the folder is root's
        (self.folder / "nginx.conf").write_text(
            f"{user} daemon off; pid {self.folder}/pid; error_log stderr;\nevents {{}}\n"
            f"http {{ access_log off;\n{places}include {self.folder}/front.conf; }}\n"
        )
        return [program("nginx"), "-p", str(self.folder), "-c", str(self.folder / "nginx.conf")]

    def caddy(self) -> list[str]:
        own = f"https://localhost:{self.port} {{\n\ttls {self.folder}/cert.pem {self.folder}/key.pem"
        text = self.at_its_addresses("Caddyfile").replace("voice.example.com {", own)
        path = self.folder / "Caddyfile"
        path.write_text("{\n\tadmin off\n\tauto_https disable_redirects\n\tskip_install_trust\n}\n" + text)
        return [program("caddy"), "run", "--adapter", "caddyfile", "--config", str(path)]

    def envoy(self) -> list[str]:
        text = (DEPLOY / "envoy.yaml").read_text().replace("/etc/envoy/tls", str(self.folder))
        settings = yaml.safe_load(
            text.replace("0.0.0.0, port_value: 443", f"127.0.0.1, port_value: {self.port}")
        )
        (cluster,) = settings["static_resources"]["clusters"]
        for each in cluster["load_assignment"]["endpoints"][0]["lb_endpoints"]:
            place = each["endpoint"]["address"]["socket_address"]
            host, _, port = self.addresses[place["address"]].partition(":")
            place |= {"address": host, "port_value": int(port)}
        path = self.folder / "envoy.yaml"
        path.write_text(yaml.safe_dump(settings))
        return [
            program("envoy"),
            "-c",
            str(path),
            "--use-dynamic-base-id",
            "--concurrency",
            "1",
            "-l",
            "warning",
        ]

    def at_its_addresses(self, name: str) -> str:
        text = (DEPLOY / name).read_text()
        for server, address in self.addresses.items():
            assert f"{server}:8080" in text
            text = text.replace(f"{server}:8080", address)
        return text

    @property
    def root(self) -> str:
        return f"https://localhost:{self.port}"

    def is_up(self) -> bool:
        return self.curl("/readyz").stdout.startswith("200 ")

    def curl(self, path: str, *options: str) -> "subprocess.CompletedProcess[str]":
        """The status and the version of HTTP, and then the body."""
        shown = ["-w", "%{stderr}%{http_code} %{http_version}\n"]
        done = subprocess.run(
            [*self.curling(path), *shown, *options], capture_output=True, text=True, check=False, timeout=30
        )
        return subprocess.CompletedProcess(done.args, done.returncode, done.stderr + done.stdout)

    def curling(self, path: str) -> list[str]:
        return [program("curl"), "-skN", "--http2", "--noproxy", "*", self.root + path]


CHAT = ["-H", "Content-Type: application/json", "-d"]
BODY = '{"model": "fake", "stream": true, "messages": [{"role": "user", "content": "Hi"}]}'


@pytest.fixture(params=["nginx", "caddy", "envoy"])
def front(
    request: pytest.FixtureRequest, tmp_path: Path, serve: Serve, upstream: FakeUpstream
) -> Iterator[Front]:
    program(request.param)
    program("curl")
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # it listens to nobody, and nobody else can
        leaf = trustme.CA().issue_cert("localhost", "127.0.0.1")
        front = Front(tmp_path, serve().port, leaf, closed.getsockname()[1])
        command: Callable[[], list[str]] = getattr(front, request.param)
        environ = {**os.environ, "HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path)}
        with (tmp_path / "log").open("wb") as log:
            process = subprocess.Popen(command(), env=environ, stdout=log, stderr=log, cwd=tmp_path)
        try:
            assert until(lambda: process.poll() is not None or front.is_up(), 20)
            assert process.poll() is None, (tmp_path / "log").read_text()
            yield front
        finally:
            process.terminate()
            process.wait(20)


def test_a_stream_arrives_as_it_is_spoken_and_a_hang_up_reaches_the_model(
    front: Front, upstream: FakeUpstream
) -> None:
    upstream.says(HEAD, chunk(ROLE + delta(content="Once")), HANG)
    caller = subprocess.Popen([*front.curling("/v1/chat/completions"), *CHAT, BODY], stdout=subprocess.PIPE)
    try:
        for line in caller.stdout:
            if b"Once" in line:
                break
        else:
            pytest.fail("the answer ended before its first word")
        (request,) = upstream.requests
        assert not request.closed.is_set()
    finally:
        caller.kill()
        caller.wait()
        caller.stdout.close()
    assert request.closed.wait(5)


def test_whole_answers_come_over_http_2_and_metrics_stay_inside(front: Front, upstream: FakeUpstream) -> None:
    upstream.says(HEAD, chunk(ROLE + delta(content="Hello.") + delta(finish="stop") + DONE), b"0\r\n\r\n")
    for session in range(8):  # of which some are the other server's, which is down
        name = ["-H", f"X-Session-Id: call-{session}"]
        got = front.curl("/v1/chat/completions", *name, *CHAT, BODY).stdout
        assert got.startswith("200 2\n") and got.rstrip().endswith("data: [DONE]")
    assert front.curl("/metrics").stdout.startswith("404 ")


def test_a_large_body_comes_through_whole(front: Front, upstream: FakeUpstream, tmp_path: Path) -> None:
    upstream.says(HEAD, chunk(ROLE + delta(content="Hello.") + delta(finish="stop") + DONE), b"0\r\n\r\n")
    body = tmp_path / "body"
    body.write_text(BODY.replace('"Hi"', '"%s"' % ("Hi. " * 500_000)))
    assert front.curl("/v1/chat/completions", *CHAT, f"@{body}").stdout.startswith("200 2\n")
    assert len(awaited(lambda: upstream.requests)[0].body) > 2_000_000


def test_envoys_own_check_takes_the_example(tmp_path: Path) -> None:
    envoy = program("envoy")
    leaf = trustme.CA().issue_cert("localhost")
    ssl_text = (DEPLOY / "envoy.yaml").read_text().replace("/etc/envoy/tls", str(tmp_path))
    leaf.private_key_pem.write_to_path(tmp_path / "key.pem")
    leaf.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    (tmp_path / "envoy.yaml").write_text(ssl_text)
    done = subprocess.run(
        [envoy, "--mode", "validate", "-c", str(tmp_path / "envoy.yaml")], capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
