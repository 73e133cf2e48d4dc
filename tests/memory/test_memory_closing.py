"""What is remembered with, at its end."""

import asyncio

from proxy.memory.facts.user_facts import PendingChanges
from proxy.memory.memory import Archiving, Memory
from tests.hurried_loop import run


class Place:
    """Whatever is closed, and a recorder that is given up after three seconds."""

    async def drain(self):
        await asyncio.sleep(3)

    async def aclose(self, within=0.0):
        pass


async def ended():
    place, promises = Place(), PendingChanges()
    others = {name: place for name in Archiving.__struct_fields__ if name not in {"pending_changes", "mem0"}}
    archiving = Archiving(**others, pending_changes=promises)
    memory = Memory(**dict.fromkeys(Memory.__struct_fields__, place) | {"archiving": archiving})
    promises.start([asyncio.Event().wait])
    before = asyncio.get_running_loop().time()
    await memory.aclose()
    return asyncio.get_running_loop().time() - before


def test_turns_and_promises_have_three_seconds_together():
    assert 2.9 < run(ended()) < 3.5
