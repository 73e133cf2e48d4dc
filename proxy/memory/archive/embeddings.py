"""What is archived on its way to having a vector: in the background, and found again after a kill."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Final, Protocol

from proxy.errors import UpstreamBroken, UpstreamError, UpstreamRefused
from proxy.memory.archive.archive import Archive
from proxy.memory.archive.records import UnembeddedText, Vector
from proxy.memory.errors import StoreError
from proxy.memory.stores import lease
from proxy.memory.stores.store import Key, Store

_log = logging.getLogger("turnkeeper")
_AT_ONCE: Final = 16
_EVERY: Final = 2.0
_LONGEST: Final = 60.0
_NAME: Final = "vectors"
# What a model says of a text that is too long for it, or that it cannot take.
_UNFIT: Final = frozenset({400, 413, 422, 500})


class Embedder(Protocol):
    """A model that says what texts mean."""

    @property
    def model(self) -> str:
        """Its name: vectors of two models cannot be compared."""
        ...

    async def vectors(self, texts: Sequence[str]) -> list[Vector]:
        """A vector for each text, in order. Raises UpstreamError."""
        ...


class EmbeddingWorker:
    """Adds to an archive the vectors that it lacks, a few texts at a time; one process at a time does."""

    def __init__(self, store: Store, archive: Archive, embedder: Embedder) -> None:
        self._store = store
        self._archive = archive
        self._embedder = embedder
        self._failing = False

    async def run(self) -> None:
        """Works until it is cancelled; what fails is tried again, after pauses."""
        pause = _EVERY
        while True:
            try:
                await self.catch_up()
                pause = _EVERY
            except (StoreError, UpstreamError) as error:
                self._failed(str(error))
                pause = min(2 * pause, _LONGEST)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is tried again
                _log.error("Vectors cannot be made: %s", type(error).__name__)
                pause = _LONGEST
            await asyncio.sleep(pause)

    def _failed(self, fault: str) -> None:
        if not self._failing:
            _log.warning("Vectors cannot be made (%s); it is tried again, and this is said once", fault)
        self._failing = True

    def _succeeded(self) -> None:
        if self._failing:
            _log.warning("Vectors are made again")
        self._failing = False

    async def catch_up(self) -> None:
        """Every text has its vector, or another process is at it. Raises UpstreamError and StoreError."""
        if not await self._archive.unembedded_texts(self._embedder.model, limit=1):
            return
        async with lease.lease(self._store, _NAME, Key("", _NAME)) as ours:
            while ours and (
                due := await self._archive.unembedded_texts(self._embedder.model, limit=_AT_ONCE)
            ):
                await self._embed(due)
                self._succeeded()

    async def _embed(self, due: Sequence[UnembeddedText]) -> None:
        legible = [(one, one.text) for one in due if one.text is not None]
        try:
            await self._add(legible)
        except UpstreamError as error:
            if not _is_unfit(error):
                raise
            await self._embed_singly(legible)
        await self._leave_out([one for one in due if one.text is None])

    async def _embed_singly(self, due: Sequence[tuple[UnembeddedText, str]]) -> None:
        """A text that the model does not take holds up no other; a model that takes none has failed."""
        failures: list[tuple[UnembeddedText, UpstreamError]] = []
        for one in due:
            try:
                await self._add([one])
            except UpstreamError as error:
                if not _is_unfit(error):
                    raise
                failures.append((one[0], error))
        if len(failures) == len(due):
            raise failures[0][1]
        await self._leave_out([one for one, _ in failures])

    async def _add(self, texts: Sequence[tuple[UnembeddedText, str]]) -> None:
        if texts:
            vectors = await self._embedder.vectors([text for _, text in texts])
            found = [(one, vector) for (one, _), vector in zip(texts, vectors, strict=True)]
            await self._archive.add_vectors(self._embedder.model, found)

    async def _leave_out(self, texts: Sequence[UnembeddedText]) -> None:
        if texts:
            await self._archive.add_vectors(self._embedder.model, [(one, None) for one in texts])


def _is_unfit(error: UpstreamError) -> bool:
    """Whether it may be the text that is at fault."""
    return isinstance(error, UpstreamBroken) or (
        isinstance(error, UpstreamRefused) and error.status in _UNFIT
    )
