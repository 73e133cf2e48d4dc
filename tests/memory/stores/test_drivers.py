"""From addresses to stores."""

import re
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import trustme

from proxy.memory.errors import StoreError
from proxy.memory.stores import drivers as opening
from proxy.memory.stores.codec import ENCRYPTED, Plain
from proxy.memory.stores.drivers import open_store
from proxy.memory.stores.encryption import Encryption
from proxy.memory.stores.session_store import SessionStore, no_meter
from proxy.memory.stores.sqlite import SqliteStore
from proxy.memory.stores.store import BlobWrite, Key
from proxy.memory.stores.volatile import VolatileStore
from proxy.settings.build import build_stores
from proxy.settings.memory import MemorySettings

KEY = Key("acme", "call-1")
ROOT = Path(__file__).parents[3]


def opened(url: str) -> object:
    return open_store(url, deadline=0.05, codec=Plain())


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("mongodb://me:s3cret@db/x", "sqlite:, postgresql:, postgres:, redis:"),
        ("turnkeeper.db", "memory:"),
        ("", "memory:"),
        ("sqlite", "sqlite:"),
        ("sqlite:", "sqlite:PATH"),
        ("sqlite:///x.db", "sqlite:PATH"),
        ("sqlite:a\0b", "sqlite:PATH"),
        ("sqlite::memory:", "write memory:"),
        ("memory:x", "without anything after it"),
    ],
)
def test_an_address_of_no_store_is_refused_with_what_there_is(url: str, says: str):
    with pytest.raises(ValueError, match=says) as raised:
        opened(url)
    assert "s3cret" not in str(raised.value)


def documented() -> list[str]:
    """Each address in the tables of stores, and those with TLS that the text under them promises."""
    lines = (ROOT / "docs" / "operating.md").read_text().splitlines()
    rows = "\n".join(line for line in lines if line.startswith("| "))
    found = re.findall(r"`((?:sqlite|postgresql|redis|memory)[\w+]*:[^`]*)`", rows)
    forms = ("redis://", "redis+sentinel://", "redis+cluster://")
    return [*found, *(url.replace("redis", "rediss", 1) for url in found if url.startswith(forms))]


def test_the_manual_tells_of_every_driver_of_ours():
    assert {url.partition(":")[0] for url in documented()} | {"postgres"} >= set(opening._DRIVERS)


@pytest.mark.parametrize("url", documented())
def test_every_address_in_the_manual_is_opened(tmp_path: Path, url: str):
    trustme.CA().cert_pem.write_to_path(tmp_path / "redis.pem")
    assert isinstance(opened(url.replace("/etc/ssl", str(tmp_path))), SessionStore)


def test_opening_touches_nothing(tmp_path: Path):
    opened(f"sqlite:{tmp_path}/memory.db")
    opened("postgresql://nobody@127.0.0.1:1/x")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.anyio
@pytest.mark.parametrize("name", ["a b.db", "100%.db", "what?mode=memory.db", "a#b.db", "é.db"])
async def test_a_path_is_taken_as_it_is_written(tmp_path: Path, name: str):
    store = opened(f"sqlite:{tmp_path}/{name}")
    assert await store.write(KEY, BlobWrite(b"1", version=0, ttl=60))
    assert (tmp_path / name).stat().st_size > 0
    await store.aclose()
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_driver_is_loaded_when_it_is_asked_for():
    heavy = {"asyncpg", "cryptography", "redis", "sqlite3"}
    code = f"import sys, proxy.memory.stores.drivers\nprint({heavy} & {{*sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_a_driver_that_is_not_installed_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "asyncpg", None)
    for name in ("proxy.memory.stores.postgres", "proxy.memory.stores.postgres_pool"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(
        ValueError, match=r"postgresql: needs the module asyncpg; install turnkeeper\[postgres\]"
    ):
        opened("postgresql://localhost/x")


def test_installed_packages_add_drivers_and_replace_none(monkeypatch: pytest.MonkeyPatch):
    others = [
        EntryPoint(name, "proxy.memory.stores.volatile:open", opening.GROUP) for name in ("memory2", "sqlite")
    ]
    monkeypatch.setattr(opening, "entry_points", lambda group: others)
    with pytest.raises(ValueError, match="write memory: without anything after it"):
        opened("memory2:x")
    store = opened("sqlite:x.db")
    assert isinstance(store.breaker.driver(), SqliteStore)


class Former:
    """A driver of the protocol as it was."""

    read = write = replace = cold = delete = deleted = list = ping = aclose = VolatileStore.read


def former(url: str, *, deadline: float) -> Former:
    return Former()


def test_a_driver_for_an_older_version_says_what_it_lacks(monkeypatch: pytest.MonkeyPatch):
    others = [EntryPoint("former", "tests.memory.stores.test_drivers:former", opening.GROUP)]
    monkeypatch.setattr(opening, "entry_points", lambda group: others)
    with pytest.raises(ValueError, match="lacks take_due, settle, acquire, release; install a newer"):
        opened("former:x")


def own(url: str, *, deadline: float) -> VolatileStore:
    """A driver that keeps all within its process."""
    return VolatileStore()


@pytest.mark.anyio
async def test_what_calls_write_is_there_for_work_in_the_background_whoever_made_the_driver(
    monkeypatch: pytest.MonkeyPatch,
):
    others = [EntryPoint("own", "tests.memory.stores.test_drivers:own", opening.GROUP)]
    monkeypatch.setattr(opening, "entry_points", lambda group: others)
    settings = MemorySettings.model_validate({"sessions": "own:x"})
    stores = build_stores(settings, no_meter)
    calls, background = stores.calls, stores.background
    assert await calls.write(KEY, BlobWrite(b"hot", version=0, ttl=60))
    held = await background.read(KEY)
    assert held is not None
    assert held.blob == b"hot"


@pytest.mark.anyio
async def test_what_a_store_keeps_is_encoded_in_both_parts():
    inner = VolatileStore()
    store = SessionStore(inner, Encryption([bytes(32)]))
    assert await store.write(KEY, BlobWrite(b"hot", version=0, ttl=60, cold=[b"cold"]))
    (line,) = await inner.list(KEY.tenant)
    place = Key(KEY.tenant, line.session)
    assert KEY.session not in line.session
    kept = await inner.read(place)
    assert kept is not None
    assert kept.blob.startswith(ENCRYPTED)
    assert [blob.startswith(ENCRYPTED) for blob in await inner.cold(place)] == [True]
    held = await store.read(KEY)
    assert held == kept._replace(blob=b"hot")
    assert await store.cold(KEY) == [b"cold"]
    moved = Key("acme", "call-2")
    await inner.write(moved, BlobWrite(kept.blob, version=0, ttl=60))
    with pytest.raises(StoreError, match="another session"):
        await store.read(moved)


@pytest.mark.anyio
async def test_a_dictionary_forgets_what_has_expired(monkeypatch: pytest.MonkeyPatch):
    store = VolatileStore()
    await store.write(KEY, BlobWrite(b"1", version=0, ttl=-1))
    store._swept -= 3600
    await store.write(Key("acme", "call-2"), BlobWrite(b"1", version=0, ttl=60))
    assert [key.session for key in store._sessions] == ["call-2"]
