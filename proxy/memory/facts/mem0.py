"""Facts in Mem0, in the place of the archive's: its library keeps them in a vector store of one's own."""

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import EntryPoint
from typing import Any, Final, TypeVar
from urllib.parse import quote

import msgspec

from proxy.memory.archive.records import Fact
from proxy.memory.errors import StoreError
from proxy.memory.stores.store import Key, Owner

T = TypeVar("T")

_LIBRARY: Final = EntryPoint("mem0", "mem0:Memory", "turnkeeper.facts")
_OURS: Final = "turnkeeper"
_ALL: Final = 10_000


class Mem0:
    """The facts of persons in a ``mem0.Memory``, which infers nothing: facts have been found before.

    What other programs put there of a user ``TENANT/PERSON``, each percent-encoded, is known as well. Calls
    of the library block, so one thread makes them all. Every method may raise StoreError.
    """

    def __init__(self, memory: Any) -> None:
        self._memory = memory
        self._thread = ThreadPoolExecutor(1, "mem0")
        self._forgotten: dict[Owner, float] = {}

    async def add_fact(self, person: Owner, fact: Fact) -> None:
        """As the archive's ``add_fact``; what came before its person was forgotten here is refused."""
        if fact.created > self._forgotten.get(person, 0.0):
            await self._called(lambda: self._add(person, fact))

    async def facts(self, person: Owner, *, now: float, superseded: bool = False) -> list[Fact]:
        """As the archive's ``facts``."""
        if not person.user:
            return []
        found = [fact for _, fact in await self._called(lambda: self._rows(person))]
        known = [one for one in found if one.expires is None or one.expires > now]
        return [one for one in sorted(known, key=_age) if superseded or one.superseded is None]

    def facts_nowait(self, person: Owner, *, now: float) -> None:
        """As the archive's ``facts_at_once``: its library is always waited for."""

    async def remove_fact(self, person: Owner, fact: str) -> bool:
        """As the archive's ``remove_fact``."""
        return bool(await self._called(lambda: self._remove(person, fact)))

    async def exported(self, person: Owner) -> Mapping[str, Sequence[Any]]:
        """All that is known of a person, what has been replaced too."""
        return {"facts": [fact.as_dict() for fact in await self.facts(person, now=0.0, superseded=True)]}

    async def forget(self, person: Owner, *, at: float) -> Mapping[str, int]:
        """Removes all of it; what was read before ``at`` is refused by this process. How much there was."""
        self._forgotten[person] = at
        return {"facts": await self._called(lambda: self._forget(person))}

    async def forget_session(self, key: Key, *, at: float) -> Mapping[str, int]:  # noqa: ARG002 - facts are persons', not sessions'
        """Removes nothing."""
        return {}

    async def scrub(self) -> None:
        """Its files are its own."""

    async def aclose(self) -> None:
        """Closes the library's stores."""
        await self._called(self._close)
        self._thread.shutdown()

    async def _called(self, work: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except Exception as error:  # noqa: BLE001 - whatever it is, and it may tell what was to be kept
            raise StoreError(f"Mem0 failed: {type(error).__name__}") from None

    def _close(self) -> None:
        # The library leaves this open, and with it the lock of a store that is a folder.
        client: Any = getattr(self._memory.vector_store, "client", None)
        if hasattr(client, "close"):
            client.close()
        self._memory.close()

    def _add(self, person: Owner, fact: Fact) -> None:
        rows = self._rows(person)
        self._put(person, fact)
        for row, other in rows:
            out_of_date = other.id == fact.replaces and other.superseded is None
            if out_of_date:
                self._put(person, msgspec.structs.replace(other, superseded=fact.created))
            if out_of_date or other.id == fact.id:
                self._memory.delete(row)

    def _put(self, person: Owner, fact: Fact) -> None:
        told = [{"role": "user", "content": fact.text}]
        metadata = {_OURS: msgspec.json.encode(fact).decode()}
        self._memory.add(told, user_id=_named(person), metadata=metadata, infer=False)

    def _rows(self, person: Owner) -> list[tuple[str, Fact]]:
        found = self._memory.get_all(filters={"user_id": _named(person)}, top_k=_ALL)["results"]
        return [(row["id"], _fact(row)) for row in found]

    def _remove(self, person: Owner, fact: str) -> int:
        rows = [row for row, one in self._rows(person) if one.id == fact]
        for row in rows:
            self._memory.delete(row)
        return len(rows)

    def _forget(self, person: Owner) -> int:
        count = len(self._rows(person))
        self._memory.delete_all(user_id=_named(person))
        self._memory.db = type(self._memory.db)(":memory:")  # its history remembers what was deleted
        return count


def open_mem0(options: Mapping[str, Any]) -> Mem0:
    """Facts in the Mem0 that its own options describe; raises ValueError where there is none to be had."""
    os.environ.setdefault(
        "MEM0_TELEMETRY", "False"
    )  # it reports to its makers, and is asked at its import alone
    try:
        library = _LIBRARY.load()
        return Mem0(library.from_config({**options, "history_db_path": ":memory:"}))
    except ModuleNotFoundError as error:
        raise ValueError(f"Mem0 needs the module {error.name}; install turnkeeper[mem0]") from None
    except Exception as error:  # noqa: BLE001 - its options may hold secrets, and its errors its options
        raise ValueError(f"Mem0 cannot be opened with these options: {type(error).__name__}") from None


def _named(person: Owner) -> str:
    return "/".join(quote(name, safe="", errors="surrogatepass") for name in person)


def _fact(row: Mapping[str, Any]) -> Fact:
    """A row as a fact; one that another program put there is known by the library's own id."""
    ours = (row.get("metadata") or {}).get(_OURS)
    if ours is None:
        return Fact(id=row["id"], text=row["memory"])
    fact = msgspec.json.decode(ours, type=Fact)
    return msgspec.structs.replace(fact, text=row["memory"])


def _age(fact: Fact) -> float:
    return fact.created
