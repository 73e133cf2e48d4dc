"""How the calls of users are listed, and what stands for them once they are over."""

import time

import msgspec
import pytest

from proxy.memory.call_notes import CallNotes
from proxy.memory.past_calls import PastCalls
from proxy.memory.session import NO_CALL, Entry, Session, TurnRef
from proxy.memory.stores.codec import Plain
from proxy.memory.stores.session_store import SessionStore, SessionWrite
from proxy.memory.stores.store import Key, Owner
from proxy.memory.stores.volatile import VolatileStore

pytestmark = pytest.mark.anyio
ANN = Owner("acme", "ann")
FIRST, SECOND = Key("acme", "first"), Key("acme", "second")


class Counting(VolatileStore):
    """Counts the leases that were asked for, and what was written."""

    leases = writes = 0

    async def acquire(self, *arguments: object, **more: object) -> bytes | None:
        self.leases += 1
        return await super().acquire(*arguments, **more)  # type: ignore[arg-type]

    async def write(self, *arguments: object) -> bool:
        self.writes += 1
        return await super().write(*arguments)  # type: ignore[arg-type]


class Listed:
    """A job that lists calls, and what it lists them in."""

    def __init__(self) -> None:
        self.driver = Counting()
        self.store = SessionStore(self.driver, Plain())
        self.calls = PastCalls(self.store)
        self.job = CallNotes(self.store, self.calls, None, pause=60.0)
        self.store.due = [self.job.due_at]

    async def begin_call(self, key: Key) -> Session:
        """Stores the first turn of a call, and has it looked at."""
        now = time.time()
        entries = [
            Entry(role=role, turn=0, content=text, user="ann", recorded_at=now)
            for role, text in (("user", f"I am in the {key.session} call."), ("assistant", "Good."))
        ]
        session = Session(user="ann", created=now, updated=now, next_turn=1, entries=tuple(entries))
        assert await self.store.save(key, SessionWrite(session, 0, 60.0))
        return await self.job.begin(key, session)

    async def places(self) -> dict[str, bool]:
        """By their sessions, whether the calls that are listed are over."""
        return {one.session: one.over for one in (await self.calls.record(ANN)).calls}


async def test_a_call_that_begins_is_listed_by_two_writes_and_without_a_lease() -> None:
    listed = Listed()
    marked = await listed.begin_call(FIRST)
    assert await listed.places() == {"first": False}
    assert marked == await listed.store.session(FIRST)
    assert marked.noted_until == TurnRef(0, -1)
    assert listed.job.due_at(marked) == marked.updated + 60.0
    # The session, the key of the users' names (twice: it is renewed once), the user's record, and the mark.
    assert (listed.driver.leases, listed.driver.writes) == (0, 5)


async def test_a_call_that_ends_another_of_its_user_is_left_to_one_process_at_a_time() -> None:
    listed = Listed()
    await listed.begin_call(FIRST)
    unmarked = await listed.begin_call(SECOND)
    assert await listed.places() == {"first": False, "second": False}
    assert listed.job.due_at(unmarked) == 0.0
    assert not await listed.job.run(SECOND, 0)
    assert await listed.places() == {"first": True, "second": False}


async def test_a_session_that_was_written_meanwhile_is_marked_as_it_is_by_then() -> None:
    listed = Listed()
    session = await listed.begin_call(FIRST)
    read = msgspec.structs.replace(session, noted_until=NO_CALL)
    await listed.store.change(FIRST, lambda _: msgspec.structs.replace(read, next_turn=2))
    marked = await listed.job.begin(FIRST, read)
    assert (marked.next_turn, marked.noted_until) == (2, TurnRef(0, -1))
    assert marked == await listed.store.session(FIRST)
