import pytest

from tests.page_visit import Visit
from tests.proxy_server import ProxyServer, Serve

KEYED = """
keys: "${TURNKEEPER_KEYS:-}"
traces: {keep: 50, content: true}
memory: {sessions: "memory:", window: {max_messages: 60, keep_messages: 20}}
upstreams: {main: {base_url: "${UPSTREAM_BASE_URL}", api_key: sk-upstream}}
pipelines:
  default:
    upstreams: [main]
    request: [repair_history, restore_history, drop_messages: {sources: [silence]}, restore_interrupted]
  bare: {upstreams: [main]}
"""
KEYS = "one:secret-1,two:secret-2,one:secret-3:chat"


@pytest.fixture
def open_proxy(serve: Serve) -> ProxyServer:
    """Without keys."""
    return serve(KEYED)


@pytest.fixture
def keyed_proxy(serve: Serve) -> ProxyServer:
    return serve(KEYED, TURNKEEPER_KEYS=KEYS)


@pytest.fixture
def visit(open_proxy: ProxyServer) -> Visit:
    return Visit(open_proxy)
