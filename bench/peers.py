"""Other proxies, if they are installed, to be measured in the same run for comparison."""

import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

NGINX = """
daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log {folder}/nginx.err warn;
events {{ worker_connections 4096; }}
http {{
  access_log off; tcp_nodelay on; keepalive_requests 1000000;
  client_body_temp_path {folder}/body; client_body_buffer_size 256k;
  upstream model {{ server 127.0.0.1:{model}; keepalive 512; keepalive_requests 1000000; }}
  server {{
    listen 127.0.0.1:{port} backlog=2048;
    location / {{
      proxy_pass http://model; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off;
    }}
  }}
}}
"""
LITELLM = """
model_list:
  - model_name: "*"
    litellm_params: {{model: "openai/*", api_base: "http://127.0.0.1:{model}/v1", api_key: sk-bench}}
general_settings: {{master_key: sk-bench}}
"""


class System(NamedTuple):
    """How to start a relay, and the path that shows that it is up."""

    name: str
    command: Sequence[str]
    path: str
    environ: Mapping[str, str] = {}
    sessions: bool = False


def nginx(folder: Path, port: int, model: int) -> System:
    """A relay that does not read the messages: the cost of passing bytes on."""
    config = folder / "nginx.conf"
    config.write_text(NGINX.format(folder=folder, port=port, model=model))
    return System("nginx", ["nginx", "-c", str(config), "-p", str(folder)], "/")


def litellm(folder: Path, port: int, model: int) -> System:
    """The best-known gateway in Python."""
    config = folder / "litellm.yaml"
    config.write_text(LITELLM.format(model=model))
    options = ["--config", str(config), "--host", "127.0.0.1", "--port", str(port), "--num_workers", "1"]
    quiet = {"LITELLM_LOG": "ERROR", "LITELLM_MODE": "PRODUCTION", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    return System("litellm", ["litellm", *options, "--telemetry", "False"], "/health/liveliness", quiet)


def smg(folder: Path, port: int, model: int) -> System:  # noqa: ARG001 - every peer is made alike
    """A gateway in Rust."""
    options = ["--host", "127.0.0.1", "--port", str(port), "--backend", "openai", "--log-level", "warn"]
    return System("smg", ["smg", "launch", *options, "--worker-urls", f"http://127.0.0.1:{model}"], "/health")


PEERS = {"nginx": nginx, "litellm": litellm, "smg": smg}


def turnkeeper(config: Path, port: int, model: int, memory: str | None) -> System:
    """Turnkeeper with a configuration, and its memory at an address."""
    environ = {
        "UPSTREAM_BASE_URL": f"http://127.0.0.1:{model}/v1",
        "UPSTREAM_API_KEY": "",
        "TURNKEEPER_KEYS": "",
        "PORT": str(port),
        "MEMORY_URL": memory or "memory:",
    }
    name = f"turnkeeper, {memory.partition(':')[0]}" if memory else "turnkeeper, no session"
    command = [str(Path(sys.executable).with_name("turnkeeper")), "serve", str(config)]
    return System(name, command, "/healthz", environ, sessions=memory is not None)


def installed(name: str) -> bool:
    """Whether the command of a peer is installed."""
    return shutil.which(name) is not None
