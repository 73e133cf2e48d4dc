"""An address that the driver could not read is refused before anything is served."""

import contextlib
from pathlib import Path

import pytest
from asyncpg import InterfaceError, connect_utils
from hypothesis import given
from hypothesis import strategies as st

from proxy.memory.archive.archive import open_archive
from proxy.memory.errors import StoreError
from proxy.memory.stores.addresses import checked_postgres_address
from proxy.memory.stores.codec import Plain
from proxy.memory.stores.drivers import open_store
from proxy.memory.stores.postgres_pool import PostgresPool
from proxy.settings.load import check_config

GOOD = [
    "postgresql://",
    "postgresql:///memory",
    "postgresql://localhost",
    "postgres://u:p%40%2F%5B%23%3Fss@db.example.com:5433/memory?sslmode=verify-full&application_name=turnkeeper",
    "postgresql://u:p@[::1]:5432/memory",
    "postgresql://u@one:5432,two:5433,three/memory?target_session_attrs=read-write",
    "postgresql://postgres@/postgres?host=/tmp/pg&search_path=acme",
    "postgresql://u:p@%2Fvar%2Frun/memory",
    f"postgresql://u:p@%2Fvar%2F{'x' * 70}/memory",
    "postgresql://u:p@/memory?host=one,two&port=5432,5433",
    "postgresql://u:p@h/a@b?application_name=c@d",
    "postgresql:///memory?host=/tmp/a%20b:c",
]
PLACE, OPTIONS = "write postgresql://user:password@host:port/database", "options are written name=value"
LABELS = "between two dots stand 1 to 63 characters"
BAD = [
    ("postgresql://u:s3cret[ss@127.0.0.1/db", PLACE),
    ("postgresql://u:s3cret@127.0.0.1:54x/db", PLACE),
    ("postgresql://u:s3cret@127.0.0.1:0/db", PLACE),
    ("postgresql://u:s3cret@127.0.0.1:65536/db", PLACE),
    ("postgresql://u:s3cret@127.0.0.1:5_4/db", PLACE),
    ("postgresql://u:s3cret@ss@127.0.0.1/db", PLACE),
    ("postgresql://u:s3cret/ss@127.0.0.1/db", PLACE),
    ("postgresql://u:12/s3cret@127.0.0.1/db", PLACE),
    ("postgresql://u:s3cret#ss@127.0.0.1/db", PLACE),
    ("postgresql://u#s3cret@127.0.0.1/db", PLACE),
    ("postgresql://u:s3cret@h/db?port=\u00b2", "a port is a number"),
    ("postgresql://u:s3cret?ss=1@127.0.0.1/db", PLACE),
    ("postgresql://u:s3cret@one,,two/db", PLACE),
    ("postgresql://u:s3cret@[::1/db", PLACE),
    ("postgresql://u:s3cret@one,a..b/db", LABELS),
    (f"postgresql://u:s3cret@{'x' * 64}.example:5432/db", LABELS),
    ("postgresql://u:s3cret@/db?host=a..b", LABELS),
    ("postgresql://u:s3cret@[zone]/db", PLACE),
    ("postgresql://u:s3cret@127.0.0.1 /db", PLACE),
    ("postgresql://u:s3cret@127.0.0.1/db?sslmode", OPTIONS),
    ("postgresql://u:s3cret@/db?port=54x", "a port is a number"),
    ("postgresql://u:s3cret@/db?host=one,,two", PLACE),
    ("postgresql://u:s3cret@h/db?sslmode=bogus", "sslmode is one of disable, allow, prefer, require"),
]


@pytest.mark.parametrize("url", GOOD)
def test_what_the_driver_reads_is_read(url: str):
    parsed(url)
    assert checked_postgres_address(url) == url


@pytest.mark.parametrize(("url", "said"), BAD)
def test_another_is_refused_and_never_shown(url: str, said: str):
    for reading in (
        checked_postgres_address,
        lambda url: open_store(url, deadline=0.05, codec=Plain()),
        lambda url: open_archive(url, codec=Plain()),
    ):
        with pytest.raises(ValueError, match="PostgreSQL") as refused:
            reading(url)
        assert said in str(refused.value)
        assert "s3cret" not in str(refused.value) and "127.0.0.1" not in str(refused.value)
        assert refused.value.__cause__ is None


@pytest.mark.parametrize("key", ["sessions", "archive"])
def test_the_check_says_how_it_is_written(tmp_path: Path, key: str):
    file = tmp_path / "c.yaml"
    memory = {"sessions": "sessions: '$A'", "archive": "sessions: 'memory:', archive: {url: '$A'}"}[key]
    file.write_text(
        f"upstreams: {{main: {{base_url: 'practice:'}}}}\npipelines: {{default: {{upstreams: [main]}}}}\n"
        f"memory: {{{memory.replace('$A', '${PLACE}')}}}\n"
    )
    (fault,) = check_config(file, {"PLACE": BAD[0][0]}).errors
    assert PLACE in fault.message and "s3cret" not in fault.message


@given(st.text("apx5:@/[]?#=&,%4. ", max_size=24))
def test_the_driver_can_read_whatever_is_not_refused(rest: str):
    with contextlib.suppress(ValueError):
        url = checked_postgres_address(f"postgresql://{rest}")
        # What it then says itself, of hosts and ports that do not match, is an error that stores know.
        with contextlib.suppress(InterfaceError):
            assert parsed(url)


@pytest.mark.anyio
async def test_what_the_driver_cannot_read_at_last_is_a_fault_of_the_store(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PGPORT", "54x")
    pool = PostgresPool("postgresql://u:s3cret@localhost/db", timeout=1.0, size=1)
    with pytest.raises(StoreError, match="cannot be understood") as raised:
        await pool.run(lambda connection: connection.fetchval("SELECT 1"))
    assert raised.value.__cause__ is None
    await pool.aclose()


def parsed(url: str) -> object:
    """As the driver takes it apart; it knows no other way to ask without connecting."""
    return connect_utils._parse_connect_arguments(
        dsn=url,
        host=None,
        port=None,
        user="nobody",
        password=None,
        passfile="/nowhere",
        database=None,
        command_timeout=None,
        statement_cache_size=100,
        max_cached_statement_lifetime=300,
        max_cacheable_statement_size=1024 * 15,
        ssl=False,
        direct_tls=False,
        server_settings=None,
        target_session_attrs=None,
        krbsrvname=None,
        gsslib=None,
        service=None,
        servicefile=None,
    )
