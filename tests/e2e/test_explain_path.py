"""``POST /v1/explain``, and that it tells the truth."""

import json
from pathlib import Path

import pytest

from tests.peers.fake_upstream import FakeUpstream
from tests.proxy_server import ProxyServer, Serve

GOLDEN = Path(__file__).parents[1] / "golden"
REQUESTS = {path.stem: json.loads(path.read_text()) for path in sorted((GOLDEN / "dialects").glob("*.json"))}
REQUESTS["documented"] = {"body": json.loads((GOLDEN / "agora_doc_request.json").read_text())}
HI = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
TWO = """
keys: "${TURNKEEPER_KEYS:-}"
listen: {max_body: 1KB}
upstreams: {main: {base_url: "${UPSTREAM_BASE_URL}", api_key: sk-upstream}}
pipelines:
  default: {upstreams: [main]}
  other: {upstreams: [main], model: other-model}
"""


@pytest.mark.parametrize("request_", REQUESTS.values(), ids=REQUESTS.keys())
def test_the_body_explained_is_the_body_sent(agora: ProxyServer, upstream: FakeUpstream, request_) -> None:
    headers, query = request_.get("headers", {}), request_.get("path", "").partition("?")[2]
    body = {"model": "m", **request_["body"]}
    told = agora.client.post(f"/v1/explain?{query}", json=body, headers=headers)
    assert not upstream.requests
    agora.client.post(f"/v1/chat/completions?{query}", json=body, headers=headers)
    assert told.status_code == 200
    assert told.json()["sent"] == upstream.last.json
    assert {"session", "user"} <= told.json()["whose"].keys()


def test_a_pipeline_can_be_named(serve: Serve) -> None:
    proxy = serve(TWO)
    told = proxy.client.post("/v1/explain?pipeline=other", json=HI).json()
    assert (told["pipeline"], told["sent"]["model"]) == ("other", "other-model")
    missing = proxy.client.post("/v1/explain?pipeline=none", json=HI)
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "pipeline_not_found")


def test_only_a_key_of_all_scopes_may_ask(serve: Serve) -> None:
    proxy = serve(TWO, TURNKEEPER_KEYS="acme:one,phone:two:chat")
    asked = [
        proxy.client.post("/v1/explain", json=HI, headers={"Authorization": f"Bearer {key}"})
        for key in ("one", "two", "three")
    ]
    assert [got.status_code for got in asked] == [200, 403, 401]
    assert asked[0].json()["whose"]["tenant"] == "acme"
    assert "sk-upstream" not in asked[0].text


def test_errors_are_those_of_a_completion(serve: Serve) -> None:
    proxy = serve(TWO)
    large = proxy.client.post("/v1/explain", json={**HI, "user": "x" * 2000})
    broken = proxy.client.post("/v1/explain", content=b"{")
    got = proxy.client.get("/v1/explain")
    assert [answer.status_code for answer in (large, broken, got)] == [413, 400, 405]
    assert got.headers["allow"] == "POST"
    assert broken.json()["error"].keys() == {"message", "type", "param", "code"}


@pytest.mark.parametrize("path", ["/v1/explain", "/v1/chat/completions"])
@pytest.mark.parametrize(
    "odd",
    [
        b'"metadata": {"a": 1e999}, "store": true',
        b'"stream": 1e999',
        b'"functions": [], "function_call": 1e999',
        b'"messages": [{"role": "user", "content": "x", "a": ' + b"1" * 5000 + b"}]",
        b'"model": 1e999',
    ],
)
def test_a_number_beyond_all_machines_is_no_failure_of_ours(
    proxy: ProxyServer, path: str, odd: bytes
) -> None:
    content = b'{"model": "m", "messages": [{"role": "user", "content": "x"}], ' + odd + b"}"
    assert proxy.client.post(path, content=content).status_code in {200, 400}
