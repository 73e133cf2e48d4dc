"""The last release and this version on one store, side by side and one after the other."""

import asyncio
import gzip
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import zipfile
from contextlib import ExitStack, closing
from pathlib import Path

import asyncpg
import pytest

from proxy.memory.stores.sql import APPLIED, MIGRATIONS
from tests.e2e.conftest import Address
from tests.e2e.conftest import address as address  # noqa: PLC0414 - a fixture of another folder
from tests.meanings import knowing
from tests.peers.fake_upstream import FakeUpstream, sse, stream_of
from tests.peers.postgres_server import PostgresServer
from tests.peers.stored_bytes import stored_bytes
from tests.serving_process import ServingProcess
from tests.waiting import until

ROOT = Path(__file__).parents[2]
LAST_RELEASE = "30ec4c4c92ad05aa7cc9cad33038d07b6fc47a61"
"""The commit of 0.1.0."""
WRITTEN_BY_IT = ROOT / "tests/golden/store-0.1.0.sqlite.gz"
"""What 0.1.0 has left in SQLite of CALL, of its archive and of a fact."""
CALL = [f"This is turn {turn} of the call." for turn in range(4)]

CONFIG = """
listen: {port: "${PORT}"}
memory: {sessions: "${MEMORY_URL}", deadline: 5s, window: {max_messages: 100, ttl: 3650d}}
upstreams: {main: {base_url: "${UPSTREAM_BASE_URL}"}}
pipelines: {default: {upstreams: [main], request: [repair_history, restore_history, inject_facts]}}
"""

RECALLING = """
listen: {port: "${PORT}"}
memory:
  sessions: "${MEMORY_URL}"
  deadline: 5s
  work: ${MEMORY_WORK:-true}
  recall: {embeddings: {upstream: main, model: small, least: 0.5}}
upstreams: {main: {base_url: "${UPSTREAM_BASE_URL}"}}
pipelines: {default: {upstreams: [main], request: [restore_history, recall]}}
"""
PUPPY, DOG = "My puppy sleeps in the kitchen.", "Our dog sleeps in the garden."
QUESTION = "Which hound?"


@pytest.fixture(scope="session")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the last release as its wheel installs it."""
    folder = tmp_path_factory.mktemp("release")
    git = ["git", "-C", str(ROOT), "archive", "-o", str(folder / "source.tar"), LAST_RELEASE]
    if not shutil.which("git") or subprocess.run(git, capture_output=True, check=False).returncode:
        pytest.skip("the last release's commit is not here, so that no wheel of it can be built")
    (folder / "source").mkdir()
    shutil.unpack_archive(folder / "source.tar", folder / "source", filter="data")
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index", "--no-build-isolation"]
    subprocess.run([*pip, "-w", str(folder), str(folder / "source")], check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(folder / "site")
    return folder / "site"


class OtherVersion(ServingProcess):
    """A server of the version in a folder."""

    def __init__(self, site: Path, folder: Path, *, config: str = CONFIG, **environ: str) -> None:
        # A safe path has none of the folder that the tests run in, where this version is.
        super().__init__(folder, config, PYTHONPATH=str(site), PYTHONSAFEPATH="1", **environ)
        self.command.insert(1, "-P")  # or this version, which is loaded already, would be forked


def speak(server: ServingProcess, text: str, session: str = "call") -> None:
    got = server.chat(text, session, user="ann", stream=True)
    assert got.status_code == 200, got.text
    assert "x-turnkeeper-degraded" not in got.headers, got.headers


def remembered(server: ServingProcess, session: str = "call") -> list[str]:
    got = server.client.get(f"/v1/memory/sessions/{session}")
    return [one["content"] for one in got.json()["contents"]] if got.status_code == 200 else []


def whole(turns: list[str]) -> list[str]:
    return [words for turn in turns for words in (turn, "Heard.")]


@pytest.mark.parametrize("store", ["sqlite", "redis", "postgresql"])
def test_both_versions_serve_one_call_in_turns(
    release: Path, tmp_path: Path, upstream: FakeUpstream, address: Address, store: str
) -> None:
    upstream.script = lambda request: sse(stream_of("Heard."))
    environ = {"MEMORY_URL": address(store), "UPSTREAM_BASE_URL": upstream.url}
    with ExitStack() as started:
        (tmp_path / "old").mkdir()
        old = started.enter_context(OtherVersion(release, tmp_path / "old", **environ))
        speak(old, "This was said before the upgrade.", "earlier")
        new = started.enter_context(ServingProcess(tmp_path, CONFIG, **environ))
        turns = [f"This is turn {turn}." for turn in range(8)]
        for turn, text in enumerate(turns):
            server, other = (old, new) if turn % 2 else (new, old)
            speak(server, text)
            (prompt,) = [
                [message["content"] for message in request.json["messages"]]
                for request in upstream.requests
                if request.path.endswith("completions") and request.json["messages"][-1]["content"] == text
            ]
            assert prompt == [*whole(turns[:turn]), text], f"{turn} by {server}"
            so_far = whole(turns[: turn + 1])
            assert until(lambda other=other, so_far=so_far: remembered(other) == so_far), remembered(other)
        for server in (old, new):
            assert remembered(server) == whole(turns)
            assert remembered(server, "earlier") == whole(["This was said before the upgrade."])


def test_each_version_searches_what_the_other_has_given_vectors(
    release: Path, tmp_path: Path, upstream: FakeUpstream
) -> None:
    """The last release compares numbers, of which this version stores none: it finds such texts by words."""
    upstream.script = knowing
    environ = {"MEMORY_URL": f"sqlite:{tmp_path / 'store.db'}", "UPSTREAM_BASE_URL": upstream.url}
    (tmp_path / "old").mkdir()

    def found(server: ServingProcess, query: str) -> set[str]:
        got = server.client.post("/v1/memory/search", json={"user": "ann", "query": query})
        assert got.status_code == 200, got.text
        return {one["text"] for one in got.json()["results"]}

    def embed(server: ServingProcess, text: str) -> None:
        assert server.chat(text, text, user="ann", stream=True).status_code == 200
        assert until(lambda: text in found(server, QUESTION), 20), found(server, "sleeps")

    with OtherVersion(release, tmp_path / "old", config=RECALLING, MEMORY_WORK="false", **environ) as old:
        (tmp_path / "older").mkdir()
        with OtherVersion(release, tmp_path / "older", config=RECALLING, **environ) as older:
            # A line is embedded once another follows it; of a greeting the older version knows nothing.
            embed(older, PUPPY)
            assert older.chat("I moved to Berlin.", PUPPY, user="ann", stream=True).status_code == 200
        with ServingProcess(tmp_path, RECALLING, **environ) as new:
            embed(new, DOG)
            # What has a vector of the older version gets another.
            assert until(lambda: found(new, QUESTION) >= {PUPPY, DOG}, 20), found(new, QUESTION)
            assert found(old, QUESTION) == set()
            assert found(old, "What sleeps?") >= {PUPPY, DOG}


def test_a_new_server_is_killed_while_it_brings_the_tables_up_to_date(
    release: Path, tmp_path: Path, upstream: FakeUpstream, postgres: PostgresServer
) -> None:
    """Calls go on at the last release, and at the next start of the new version."""
    upstream.script = lambda request: sse(stream_of("Heard."))
    address = postgres.url(asyncio.run(postgres.new_schema()))
    environ = {"MEMORY_URL": address, "UPSTREAM_BASE_URL": upstream.url}
    spoken: list[str] = []

    def speak_on(server: ServingProcess) -> None:
        spoken.append(f"This is turn {len(spoken)}.")
        speak(server, spoken[-1])
        assert until(lambda: remembered(server) == whole(spoken)), remembered(server)

    (tmp_path / "old").mkdir()
    with OtherVersion(release, tmp_path / "old", **environ) as old:
        speak_on(old)
        with asyncio.Runner() as runner:
            reader = runner.run(asyncpg.connect(address))
            # While something older reads, no index is finished.
            runner.run(
                reader.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1 FROM pg_class LIMIT 1")
            )
            try:
                for _ in range(2):
                    new = ServingProcess(tmp_path, CONFIG, **environ)
                    with new:
                        assert until(lambda: len(unfinished(address)) == 1, 30)
                        for server in (old, new, old):
                            speak_on(server)
                        new.kill()
                    speak_on(old)
            finally:
                runner.run(reader.close())
        with ServingProcess(tmp_path, CONFIG, **environ) as new:
            for server in (new, old):
                speak_on(server)
            assert until(lambda: applied(address) == {one.__name__ for one in MIGRATIONS}, 30)
            assert unfinished(address) == []
            archive = "/v1/memory/sessions/call/turns"
            assert until(
                lambda: len(new.client.get(archive).json().get("data", [])) == len(whole(spoken)), 30
            )


def asked(address: str, query: str) -> list[str]:
    async def rows() -> list[str]:
        connection = await asyncpg.connect(address)
        try:
            return [name for (name,) in await connection.fetch(query)]
        finally:
            await connection.close()

    return asyncio.run(rows())


def applied(address: str) -> set[str]:
    return {*asked(address, APPLIED)}


def unfinished(address: str) -> list[str]:
    """Indexes that are being made, or were when something was killed."""
    return asked(
        address,
        "SELECT c.relname FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid"
        " WHERE NOT i.indisvalid AND c.relnamespace = current_schema()::regnamespace",
    )


@pytest.fixture
def written_by_it(tmp_path: Path) -> str:
    path = tmp_path / "store.db"
    path.write_bytes(gzip.decompress(WRITTEN_BY_IT.read_bytes()))
    return f"sqlite:{path}"


def test_what_the_last_release_has_left_is_taken_over(
    written_by_it: str, tmp_path: Path, upstream: FakeUpstream
) -> None:
    upstream.script = lambda request: sse(stream_of("Heard."))
    with ServingProcess(tmp_path, CONFIG, MEMORY_URL=written_by_it, UPSTREAM_BASE_URL=upstream.url) as server:
        assert remembered(server) == whole(CALL)
        archived = server.client.get("/v1/memory/sessions/call/turns").json()["data"]
        assert [one["message"]["content"] for one in archived] == whole(CALL)
        speak(server, "And this is the newest.")
        prompt = [message["content"] for message in upstream.last.json["messages"]]
        assert prompt[-len(whole(CALL)) - 1 : -1] == whole(CALL)
        assert prompt[-1].endswith("And this is the newest.")
        assert any("Likes window seats" in words for words in prompt)
        facts = server.client.get("/v1/memory/users/ann/facts").json()["data"]
        assert [one["text"] for one in facts] == ["Likes window seats."]
        assert until(lambda: len(remembered(server)) == len(whole(CALL)) + 2)


def test_the_last_release_writes_that_store(release: Path, tmp_path: Path, upstream: FakeUpstream) -> None:
    """Or what is taken over above is nothing that anybody has."""
    upstream.script = lambda request: sse(stream_of("Heard."))
    path = tmp_path / "store.db"
    environ = {"MEMORY_URL": f"sqlite:{path}", "UPSTREAM_BASE_URL": upstream.url}
    with OtherVersion(release, tmp_path, **environ) as old:
        for turn in CALL:
            speak(old, turn)
        old.client.post("/v1/memory/users/ann/facts", json={"text": "Likes window seats."}).raise_for_status()
        assert until(lambda: remembered(old) == whole(CALL))
        archive = "/v1/memory/sessions/call/turns"
        assert until(lambda: len(old.client.get(archive).json().get("data", [])) == len(whole(CALL)))
    with closing(sqlite3.connect(path)) as database:
        database.execute("VACUUM INTO ?", (f"{path}.whole",))
    if target := os.environ.get("TURNKEEPER_WRITE_GOLDEN"):
        Path(target).write_bytes(gzip.compress(Path(f"{path}.whole").read_bytes(), mtime=0))
    (tmp_path / "left.db").write_bytes(gzip.decompress(WRITTEN_BY_IT.read_bytes()))
    assert tables(tmp_path / "left.db") == tables(path)


def tables(path: Path) -> list[tuple[str, str]]:
    with closing(sqlite3.connect(path)) as database:
        return database.execute("SELECT name, sql FROM sqlite_master ORDER BY name").fetchall()


NEW_FIELD = (
    '    mood: str = msgspec.field(default_factory=lambda: "mood-" + __import__("secrets").token_hex(8))\n'
)
EXTENDED = {
    "proxy/memory/session.py": ("Session", "Entry"),
    "proxy/memory/past_calls.py": ("UserRecord",),
    "proxy/memory/archive/records.py": ("Fact",),
}


@pytest.fixture
def next_release(tmp_path: Path) -> Path:
    """A folder with a version in which some of what is stored has one more field, each value's another."""
    site = tmp_path / "next"
    for package in ("filters", "proxy", "turnkeeper"):
        shutil.copytree(ROOT / package, site / package, ignore=shutil.ignore_patterns("__pycache__"))
    for name, classes in EXTENDED.items():
        text = (site / name).read_text()
        for each in classes:
            text, count = re.subn(
                rf"^class {each}\((?:Extensible|UserValue).*\n",
                rf"\g<0>{NEW_FIELD}",
                text,
                flags=re.MULTILINE,
            )
            assert count == 1, each
        (site / name).write_text(text)
    return site


@pytest.mark.parametrize("store", ["redis", "postgresql"])
def test_this_version_keeps_what_the_next_one_will_add(
    next_release: Path, tmp_path: Path, upstream: FakeUpstream, address: Address, store: str
) -> None:
    upstream.script = lambda request: sse(stream_of("Heard."))
    environ = {"MEMORY_URL": address(store), "UPSTREAM_BASE_URL": upstream.url, "MEMORY_WORK": "false"}

    def moods() -> set[bytes]:
        return set(re.findall(rb"mood-\w{16}", stored_bytes(environ["MEMORY_URL"])))

    (tmp_path / "newer").mkdir()
    with OtherVersion(next_release, tmp_path / "newer", **environ) as newer:
        for turn in CALL[:2]:
            speak(newer, turn)
        fact = newer.client.post("/v1/memory/users/ann/facts", json={"text": "Likes window seats."}).json()
        newer.client.put("/v1/memory/users/ann/profile", json={"text": "A guest."}).raise_for_status()
        assert until(lambda: remembered(newer) == whole(CALL[:2]))
        assert until(lambda: len(moods()) == 1 + 4 + 1 + 1), moods()
        if store == "postgresql":  # the newer one archives what it finds, so it is to have done that
            assert until(lambda: len(newer.client.get("/v1/memory/users/ann/export").json()["turns"]) == 4)
        before = moods()
        with ServingProcess(tmp_path, CONFIG, **environ) as older:
            speak(older, CALL[2])
            facts = "/v1/memory/users/ann/facts"
            older.client.patch(
                f"{facts}/{fact['id']}", json={"text": "Likes aisle seats."}
            ).raise_for_status()
            older.client.post(facts, json={"text": "Has a dog."}).raise_for_status()
            older.client.put("/v1/memory/users/ann/profile", json={"text": "A friend."}).raise_for_status()
            assert until(lambda: remembered(older) == whole(CALL[:3]))
            assert [one["text"] for one in older.client.get(facts).json()["data"]] == [
                "Likes aisle seats.",
                "Has a dog.",
            ]
        assert moods() == before
        assert b"~unknown" not in stored_bytes(environ["MEMORY_URL"])
        speak(newer, CALL[3])
        assert until(lambda: remembered(newer) == whole(CALL))
        assert before <= moods()
