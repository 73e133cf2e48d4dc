"""A configuration is read again while memory is away: what waits to be written outlives the old one."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from proxy.server.reload import Reload
from proxy.settings.load import load
from tests.peers.fake_upstream import FakeUpstream, Received, Step, answer, completion
from tests.peers.redis_server import RedisServer
from tests.proxy_server import ProxyServer
from tests.remembering import IMPATIENT as CONFIG
from tests.remembering import call, stored_entries, texts, user
from tests.serving_process import until
from tests.tried import Tried

pytestmark = pytest.mark.faults


class Served:
    """A server on a Redis, whose configuration can be read again."""

    def __init__(self, proxy: ProxyServer, redis: RedisServer, again: Reload) -> None:
        self.proxy, self.redis, self._again = proxy, redis, again

    def reload(self) -> None:
        self.proxy.run(self._again.reload())

    def old_one_ended(self) -> bool:
        return not self.proxy.app._closing

    def says(self, text: str, turn: int) -> None:
        assert call(self.proxy, user(text, turn)).status_code == 200

    def holds(self, *words: str) -> bool:
        wanted = [line for text in words for line in (("user", text), ("assistant", f"To {text}"))]
        return texts(stored_entries(self.proxy)) == wanted


def echo(asked: Received) -> list[Step]:
    return answer(completion(f"To {asked.json['messages'][-1]['content']}"))


@pytest.fixture
def served(upstream: FakeUpstream, tmp_path: Path) -> Iterator[Served]:
    upstream.script = echo
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG)
    with contextlib.closing(RedisServer(tmp_path, "appendonly yes", "appendfsync always")) as redis:
        environ = {"UPSTREAM_BASE_URL": upstream.url, "MEMORY_URL": redis.url}
        with ProxyServer(path, environ) as proxy:
            yield Served(proxy, redis, Reload(proxy.app, load(path, environ), path, environ))


@pytest.mark.parametrize("times", [1, 3])
def test_no_turn_that_waits_is_lost(served: Served, tried: Tried, times: int) -> None:
    served.says("Before.", 1)
    assert until(lambda: served.holds("Before."))
    served.redis.kill()
    for turn in range(times):
        served.says(f"Meanwhile {turn}.", 2 + turn)
        served.reload()
    served.says("After.", 9)
    assert until(served.old_one_ended)
    assert served.proxy.app.gauges().lost == 0
    served.redis.start()
    assert until(lambda: served.holds("Before.", *(f"Meanwhile {turn}." for turn in range(times)), "After."))
    tried(f"{times} edits while redis is away", "every turn held later, in its order")


def test_newer_words_stay_the_newer_ones(served: Served, tried: Tried) -> None:
    served.says("Before.", 1)
    assert until(lambda: served.holds("Before."))
    served.redis.kill()
    served.says("Tell", 2)
    served.reload()
    served.says("Tell me a joke", 2)
    served.redis.start()
    assert until(served.old_one_ended)
    assert until(lambda: served.holds("Before.", "Tell me a joke")), texts(stored_entries(served.proxy))
    tried("newer words behind an edit, redis away", "the newer words are held")
