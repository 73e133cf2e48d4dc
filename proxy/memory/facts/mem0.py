"""Facts in Mem0, whose library stores them in a vector store of the operator's choice."""

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import EntryPoint
from typing import Any, Final, TypeVar
from urllib.parse import quote

import msgspec

from proxy.memory import extensible
from proxy.memory.archive.records import Fact
from proxy.memory.errors import StoreError
from proxy.memory.privacy import DataHolder
from proxy.memory.stores.store import Owner

T = TypeVar("T")

_LIBRARY: Final = EntryPoint("mem0", "mem0:Memory", "turnkeeper.facts")
# The key of a fact in a memory's metadata.
_FACT: Final = "turnkeeper"
_NO_LIMIT: Final = 10_000


def open_mem0(options: Mapping[str, Any]) -> "Mem0":
    """Opens Mem0 with its own options. Raises ValueError if that fails."""
    # The library sends telemetry unless this is set before its import.
    os.environ.setdefault("MEM0_TELEMETRY", "False")
    try:
        library = _LIBRARY.load()
        return Mem0(library.from_config({**options, "history_db_path": ":memory:"}))
    except ModuleNotFoundError as error:
        raise ValueError(f"Mem0 needs the module {error.name}; install turnkeeper[mem0]") from None
    except Exception as error:  # noqa: BLE001 - its errors may quote its options, which may be secrets
        raise ValueError(f"Mem0 cannot be opened with these options: {type(error).__name__}") from None


class Mem0(DataHolder):
    """The facts of users in a ``mem0.Memory``, which stores them without inferring others.

    Memories that other programs add for the user ``TENANT/USER``, each percent-encoded, are facts as well.
    The library's calls block, so one thread makes them all. Every method may raise StoreError.
    """

    def __init__(self, memory: Any) -> None:
        self._memory = memory
        self._thread = ThreadPoolExecutor(1, "mem0")
        self._erased: dict[Owner, float] = {}

    async def add_fact(self, user: Owner, fact: Fact) -> None:
        """Adds or replaces a fact; drops one that is older than its user's erasure by this process."""
        if fact.created <= self._erased.get(user, 0.0):
            return

        def add() -> None:
            rows = self._rows(user)
            self._put(user, fact)
            for row, other in rows:
                superseded = other.id == fact.replaces and other.superseded is None
                if superseded:
                    self._put(user, msgspec.structs.replace(other, superseded=fact.created))
                if superseded or other.id == fact.id:
                    self._memory.delete(row)

        await self._call(add)

    async def facts(self, user: Owner, *, now: float, superseded: bool = False) -> list[Fact]:
        """Reads a user's facts that have not expired, the oldest first."""
        if not user.user:
            return []
        rows = await self._call(lambda: self._rows(user))
        facts = [fact for _, fact in rows if fact.expires is None or fact.expires > now]
        facts.sort(key=lambda fact: fact.created)
        return [fact for fact in facts if superseded or fact.superseded is None]

    def facts_nowait(self, user: Owner, *, now: float) -> None:
        """Returns ``None``, because the library always blocks."""

    async def remove_fact(self, user: Owner, fact_id: str) -> bool:
        """Removes a fact; returns whether there was one."""

        def remove() -> bool:
            rows = [row for row, fact in self._rows(user) if fact.id == fact_id]
            for row in rows:
                self._memory.delete(row)
            return bool(rows)

        return await self._call(remove)

    async def export(self, user: Owner) -> Mapping[str, Sequence[Any]]:
        """Exports all facts of a user, including superseded ones."""
        return {"facts": [fact.as_dict() for fact in await self.facts(user, now=0.0, superseded=True)]}

    async def forget(self, user: Owner, *, at: float) -> Mapping[str, int]:
        """Deletes all facts of a user; returns how many. This process drops older facts that come later."""
        self._erased[user] = at

        def forget() -> int:
            count = len(self._rows(user))
            self._memory.delete_all(user_id=_user_id(user))
            # The library's history still contains deleted facts.
            self._memory.db = type(self._memory.db)(":memory:")
            return count

        return {"facts": await self._call(forget)}

    async def aclose(self) -> None:
        """Closes the library's stores."""

        def close() -> None:
            # The library leaves this open, and with it the lock of a store that is a folder.
            client: Any = getattr(self._memory.vector_store, "client", None)
            if hasattr(client, "close"):
                client.close()
            self._memory.close()

        await self._call(close)
        self._thread.shutdown()

    async def _call(self, work: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except Exception as error:  # noqa: BLE001 - its errors may quote a fact
            raise StoreError(f"Mem0 failed: {type(error).__name__}") from None

    def _put(self, user: Owner, fact: Fact) -> None:
        messages = [{"role": "user", "content": fact.text}]
        fields = msgspec.msgpack.decode(extensible.encode(fact))
        metadata = {_FACT: msgspec.json.encode(fields).decode()}
        self._memory.add(messages, user_id=_user_id(user), metadata=metadata, infer=False)

    def _rows(self, user: Owner) -> list[tuple[str, Fact]]:
        """Reads a user's facts with the library's ids, which are also those of other programs' facts."""
        results = self._memory.get_all(filters={"user_id": _user_id(user)}, top_k=_NO_LIMIT)["results"]
        rows: list[tuple[str, Fact]] = []
        for row in results:
            encoded = (row.get("metadata") or {}).get(_FACT)
            if encoded is None:
                fact = Fact(id=row["id"], text=row["memory"])
            else:
                fields = msgspec.msgpack.encode(msgspec.json.decode(encoded))
                fact = msgspec.structs.replace(extensible.decode(fields, Fact), text=row["memory"])
            rows.append((row["id"], fact))
        return rows


def _user_id(user: Owner) -> str:
    return "/".join(quote(name, safe="", errors="surrogatepass") for name in user)
