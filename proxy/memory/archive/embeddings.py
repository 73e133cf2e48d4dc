"""Embeds the archive's texts with a model in the background."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Final, Protocol

from proxy.circuit import Backoff, Outage
from proxy.clock import wall_time
from proxy.errors import UpstreamBroken, UpstreamError, UpstreamRefused
from proxy.memory.archive.archive import Archive
from proxy.memory.archive.records import UnembeddedText, Vector
from proxy.memory.errors import StoreError
from proxy.memory.stores import lease
from proxy.memory.stores.store import Key, Store

_AT_ONCE: Final = 16
_EVERY: Final = 2.0
_LONGEST: Final = 60.0
_LEASE: Final = "vectors"
# Seconds for which a turn waits for the next one, with which it is embedded.
_WITHOUT_NEXT: Final = 60.0
# The statuses with which a model refuses a text that is too long or invalid.
_REFUSALS: Final = frozenset({400, 413, 422, 500})

_log = logging.getLogger("turnkeeper")


class Embedder(Protocol):
    """A model that embeds texts."""

    @property
    def model(self) -> str:
        """The model's name; vectors of different models cannot be compared."""
        ...

    async def vectors(self, texts: Sequence[str]) -> list[Vector]:
        """Returns a vector for each text, in order. Raises UpstreamError."""
        ...


class EmbeddingWorker:
    """Adds missing vectors to an archive, a few texts at a time, in one process at a time."""

    def __init__(self, store: Store, archive: Archive, embedder: Embedder) -> None:
        self._store = store
        self._archive = archive
        self._embedder = embedder
        self._outage = Outage(
            "Vectors cannot be made (%s); it is tried again, and this is said once", "Vectors are made again"
        )

    async def run(self) -> None:
        """Embeds texts until cancelled; pauses grow after failures."""
        failures = 0
        while True:
            pause = _EVERY
            try:
                await self.catch_up()
                failures = 0
            except (StoreError, UpstreamError) as error:
                self._outage.begin(str(error))
                failures += 1
                pause = Backoff(_EVERY, _LONGEST).pause(failures + 1)
            except Exception as error:  # noqa: BLE001 - it is tried again after any error
                _log.error("Vectors cannot be made: %s", type(error).__name__)
                pause = _LONGEST
            await asyncio.sleep(pause)

    async def catch_up(self) -> None:
        """Embeds all due texts, unless another process does so.

        Raises UpstreamError and StoreError.
        """
        if not await self._due(1):
            return
        async with lease.lease(self._store, _LEASE, Key("", _LEASE)) as acquired:
            while acquired and (texts := await self._due(_AT_ONCE)):
                await self._embed(texts)
                self._outage.end()

    async def _due(self, limit: int) -> list[UnembeddedText]:
        until = wall_time() - _WITHOUT_NEXT
        return await self._archive.unembedded_texts(self._embedder.model, limit=limit, until=until)

    async def _embed(self, texts: Sequence[UnembeddedText]) -> None:
        readable = [text for text in texts if text.text is not None]
        without = [text for text in texts if text.text is None]
        try:
            await self._add(readable)
        except UpstreamError as error:
            if not _may_refuse_text(error):
                raise
            # One by one, so that a refused text does not block others.
            failures: list[UpstreamError] = []
            for text in readable:
                try:
                    await self._add([text])
                except UpstreamError as failure:
                    if not _may_refuse_text(failure):
                        raise
                    failures.append(failure)
                    without.append(text)
            if len(failures) == len(readable):
                raise failures[0] from None
        if without:
            await self._archive.add_vectors(self._embedder.model, [(text, None) for text in without])

    async def _add(self, texts: Sequence[UnembeddedText]) -> None:
        if texts:
            vectors = await self._embedder.vectors([text.text or "" for text in texts])
            await self._archive.add_vectors(self._embedder.model, [*zip(texts, vectors, strict=True)])


def _may_refuse_text(error: UpstreamError) -> bool:
    """Whether the text may be the cause of an error, rather than the model."""
    return isinstance(error, UpstreamBroken) or (
        isinstance(error, UpstreamRefused) and error.status in _REFUSALS
    )
