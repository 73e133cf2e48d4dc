"""Archived texts get their vectors in the background, whatever the model does meanwhile."""

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from proxy.errors import UpstreamBroken, UpstreamError, UpstreamRefused, UpstreamUnreachable
from proxy.memory.archive.archive import Archive, open_archive
from proxy.memory.archive.embeddings import EmbeddingWorker
from proxy.memory.archive.records import Vector
from proxy.memory.session import Entry, Session
from proxy.memory.stores import lease
from proxy.memory.stores.codec import Plain
from proxy.memory.stores.drivers import open_store
from proxy.memory.stores.store import Key, Store
from tests.meanings import vector

pytestmark = pytest.mark.anyio


class Model:
    """An embedder that refuses on request, and records the size of each request."""

    def __init__(self, refuses: Callable[[str], Exception | None] = lambda _: None) -> None:
        self.model = "m"
        self.refuses = refuses
        self.asked: list[int] = []

    async def vectors(self, texts: Sequence[str]) -> list[Vector]:
        self.asked.append(len(texts))
        for error in filter(None, map(self.refuses, texts)):
            raise error
        return [vector(text) for text in texts]


@pytest.fixture
async def archive(tmp_path: Path):
    opened = open_archive(f"sqlite:{tmp_path / 'a.db'}", codec=Plain())
    yield opened
    await opened.aclose()


@pytest.fixture
def store() -> Store:
    return open_store("memory:", deadline=1, codec=Plain())


async def keep(archive: Archive, *texts: str) -> None:
    """Each in a call of its own, which ended a while ago."""
    at = time.time() - 100
    for i, text in enumerate(texts):
        entry = Entry(role="user", turn=0, content=text, recorded_at=at)
        await archive.save_session(
            Key("acme", f"call-{i}"), Session(entries=(entry,), user="ann", created=5.0), as_of=at
        )


async def lacking(archive: Archive) -> list[str | None]:
    return sorted(one.text or "" for one in await archive.unembedded_texts("m", limit=1000))


async def test_all_texts_get_their_vectors_a_few_at_a_time(store: Store, archive: Archive):
    await keep(archive, *(f"scarecrow {i}" for i in range(40)))
    model = Model()
    await EmbeddingWorker(store, archive, model).catch_up()
    assert model.asked == [16, 16, 8]
    await EmbeddingWorker(store, archive, model).catch_up()
    assert model.asked == [16, 16, 8]
    assert await lacking(archive) == []


async def test_what_was_left_at_a_kill_is_found(store: Store, archive: Archive):
    await keep(archive, *(f"scarecrow {i}" for i in range(20)))
    calls = iter([None] * 16)

    def dying(_: str) -> Exception | None:
        return next(calls, UpstreamUnreachable("killed"))

    with pytest.raises(UpstreamUnreachable):
        await EmbeddingWorker(store, archive, Model(dying)).catch_up()
    assert len(await lacking(archive)) == 4
    await EmbeddingWorker(store, archive, Model()).catch_up()
    assert await lacking(archive) == []


@pytest.mark.parametrize(
    "error", [UpstreamRefused(400, b"", {}), UpstreamRefused(500, b"", {}), UpstreamBroken("NaN")]
)
async def test_a_text_that_the_model_does_not_take_holds_up_no_other(
    store: Store, archive: Archive, error: UpstreamError
):
    await keep(archive, "a scarecrow", "a bomb", "a wheelbarrow")
    await EmbeddingWorker(store, archive, Model(lambda text: error if "bomb" in text else None)).catch_up()
    assert await lacking(archive) == []


@pytest.mark.parametrize(
    "error",
    [
        UpstreamRefused(400, b"", {}),
        UpstreamRefused(401, b"", {}),
        UpstreamBroken("no JSON"),
        UpstreamUnreachable("gone"),
    ],
)
async def test_what_a_model_that_takes_nothing_was_asked_is_asked_again(
    store: Store, archive: Archive, error: UpstreamError
):
    await keep(archive, "a scarecrow", "a wheelbarrow")
    with pytest.raises(UpstreamError):
        await EmbeddingWorker(store, archive, Model(lambda _: error)).catch_up()
    assert await lacking(archive) == ["User: a scarecrow", "User: a wheelbarrow"]


async def test_two_processes_do_not_ask_twice(store: Store, archive: Archive):
    await keep(archive, "a scarecrow")
    model = Model()
    async with lease.lease(store, "vectors", Key("", "vectors")) as ours:
        assert ours
        await EmbeddingWorker(store, archive, model).catch_up()
    assert model.asked == []


async def test_it_goes_on_until_it_is_cancelled(
    store: Store, archive: Archive, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("proxy.memory.archive.embeddings._EVERY", 0.01)
    failures = iter([UpstreamUnreachable("gone"), ValueError("odd")])
    monkeypatch.setattr("proxy.memory.archive.embeddings._LONGEST", 0.02)
    running = asyncio.create_task(
        EmbeddingWorker(store, archive, Model(lambda _: next(failures, None))).run()
    )
    await keep(archive, "a scarecrow")
    async with asyncio.timeout(5):
        while await lacking(archive):  # noqa: ASYNC110 - it works when it likes
            await asyncio.sleep(0.01)
    running.cancel()
    await asyncio.wait({running})
    assert running.cancelled()


async def test_that_a_model_refuses_is_said_once_and_that_it_works_again_once(
    store: Store, archive: Archive, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """A wrong key lasts for days: each try would fill the log."""
    monkeypatch.setattr("proxy.memory.archive.embeddings._EVERY", 0.01)
    monkeypatch.setattr("proxy.memory.archive.embeddings._LONGEST", 0.01)
    refusals = iter([UpstreamRefused(401, b"", {})] * 5)
    running = asyncio.create_task(
        EmbeddingWorker(store, archive, Model(lambda _: next(refusals, None))).run()
    )
    await keep(archive, "a scarecrow")
    async with asyncio.timeout(20):
        while await lacking(archive) or len(caplog.messages) < 2:  # noqa: ASYNC110 - it works when it likes
            await asyncio.sleep(0.01)
    running.cancel()
    await asyncio.wait({running})
    assert caplog.messages == [
        "Vectors cannot be made (The upstream answered 401.); it is tried again, and this is said once",
        "Vectors are made again",
    ]
