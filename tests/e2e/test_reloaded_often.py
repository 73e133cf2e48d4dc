"""A configuration that was replaced is given up, though the first one of a server stays for good."""

import gc
import sqlite3
import weakref
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from proxy.server.reload import Reload
from proxy.settings.load import load
from tests.peers.fake_upstream import FakeUpstream
from tests.proxy_server import ProxyServer
from tests.remembering import IMPATIENT, call, settle, user
from tests.waiting import until

CONFIG = f"{IMPATIENT}traces: {{keep: 0}}\n"
"""A turn that is kept for the page is kept with its pipeline."""


@pytest.fixture
def no_collector() -> Iterator[None]:
    """The collector of a server that has little to do, which comes to old objects hardly ever."""
    gc.disable()
    yield
    gc.enable()


@contextmanager
def locked(file: Path) -> Iterator[None]:
    """Another program writes to the file for longer than a write waits."""
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("is_locked", [False, True])
def test_replaced_configurations_are_given_up(
    upstream: FakeUpstream, tmp_path: Path, *, is_locked: bool
) -> None:
    path, environ = tmp_path / "config.yaml", {"UPSTREAM_BASE_URL": upstream.url}
    path.write_text(CONFIG)
    environ["MEMORY_URL"] = f"sqlite:{tmp_path / 'memory.db'}"
    with ProxyServer(path, environ) as proxy:
        app, stores = proxy.app, []
        first = app.memory  # is frozen with all that was loaded before the server serves
        again = Reload(app, load(path, environ), path, environ)
        for turn in range(4):
            assert call(proxy, user(f"Words {turn}", turn)).status_code == 200
            settle(proxy)
            assert app.memory
            if is_locked:
                with locked(tmp_path / "memory.db"):
                    assert call(proxy, user(f"More words {turn}", turn)).status_code == 200
                    assert until(lambda memory=app.memory: memory.recorder.backlog.sessions)
                settle(proxy)
            stores.append(weakref.ref(app.memory.store))
            proxy.run(again.reload())
        assert until(lambda: not app._closing and not any(store() for store in stores[1:]))
        assert first
        assert first.store is stores[0]()
