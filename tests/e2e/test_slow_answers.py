"""An answer whose deltas come one by one is remembered whole."""

from pathlib import Path

from tests.peers.fake_upstream import DONE, END, HEAD, ROLE, FakeUpstream, chunk, delta
from tests.proxy_server import ProxyServer
from tests.remembering import CONFIG, call, stored_entries, texts, user


def test_what_was_heard_piece_by_piece_is_remembered(upstream: FakeUpstream, tmp_path: Path) -> None:
    words = [f"word{number} " for number in range(6)]
    pieces = [step for word in words for step in (0.05, chunk(delta(content=word)))]
    upstream.says(HEAD, chunk(ROLE), *pieces, 0.05, chunk(DONE), END)
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG)
    environ = {"UPSTREAM_BASE_URL": upstream.url, "MEMORY_URL": f"sqlite:{tmp_path / 'm.db'}"}
    with ProxyServer(path, environ) as proxy:
        got = call(proxy, user("Count.", 1), stream=True)
        assert got.status_code == 200
        assert all(word in got.text for word in words)
        assert texts(stored_entries(proxy)) == [("user", "Count."), ("assistant", "".join(words))]
