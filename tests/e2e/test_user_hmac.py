"""``identity.user_hmac``: user ids that must be signed."""

import hashlib
import hmac

import pytest

from proxy.errors import ConfigError
from proxy.settings.load import load
from proxy.turn.identity import UserProof
from tests.peers.fake_upstream import FakeUpstream
from tests.proxy_server import CONFIG, ProxyServer, Serve

SECRET = "a secret of twenty-nine bytes"
CONFIGURED = CONFIG.replace("request: []", f"identity: {{user_hmac: '{SECRET}'}}")


def signed(user: str, secret: str = SECRET) -> str:
    return hmac.new(secret.encode(), user.encode(), hashlib.sha256).hexdigest()


@pytest.fixture
def proving(serve: Serve) -> ProxyServer:
    return serve(CONFIGURED)


def test_a_user_with_a_proof_is_let_in(proving: ProxyServer) -> None:
    assert proving.chat(headers={"X-User-Id": "ann", "X-User-Hmac": signed("ann")}).status_code == 200
    assert proving.chat(headers={"X-User-Id": "ann", "X-User-Hmac": signed("ann").upper()}).status_code == 200


@pytest.mark.parametrize("coding", ["utf-8", "latin-1"])
def test_a_proof_is_of_the_name_and_not_of_its_bytes(proving: ProxyServer, coding: str) -> None:
    headers = {"X-User-Id": "José".encode(coding), "X-User-Hmac": signed("José").encode()}
    assert proving.chat(headers=headers).status_code == 200
    assert proving.chat(headers=headers | {"X-User-Id": "Josè".encode(coding)}).status_code == 401


@pytest.mark.parametrize(
    "proof", [None, "", "nonsense", "é", signed("bob"), signed("ann")[:-1], signed("ann", "another")]
)
def test_a_user_without_one_is_401(proving: ProxyServer, upstream: FakeUpstream, proof: str | None) -> None:
    headers = {"X-User-Id": b"ann"} | ({} if proof is None else {"X-User-Hmac": proof.encode("latin-1")})
    got = proving.chat(headers=headers)
    assert got.status_code == 401
    assert got.json()["error"]["code"] == "invalid_user_hmac"
    assert SECRET not in got.text and signed("ann") not in got.text
    assert not upstream.requests


def test_who_names_no_user_needs_no_proof(proving: ProxyServer) -> None:
    assert proving.chat().status_code == 200


def test_a_user_in_the_body_is_nobody(proving: ProxyServer) -> None:
    proving.chat(user="ann", user_id="ann", headers={"X-Session-Id": "s"})
    with proving.client.stream("GET", "/v1/turns") as got:
        event = next(line for line in got.iter_lines() if line.startswith("data: "))
    assert '"user":null' in event


def test_a_listed_place_needs_the_proof_too(serve: Serve) -> None:
    proxy = serve(CONFIGURED.replace("{user_hmac", '{user: ["body:user"], user_hmac'))
    assert proxy.chat(user="ann").status_code == 401
    assert proxy.chat(user="ann", headers={"X-User-Hmac": signed("ann")}).status_code == 200


def test_a_secret_that_can_be_guessed_is_a_fault(tmp_path) -> None:
    (tmp_path / "c.yaml").write_text(CONFIGURED.replace(SECRET, "short"))
    with pytest.raises(ConfigError, match="16 characters"):
        load(tmp_path / "c.yaml", {})


def test_the_secret_is_shown_nowhere() -> None:
    assert SECRET not in repr(UserProof(SECRET))
