"""Closing memory: waiting turns and changes of facts have three seconds together."""

import asyncio

from proxy.memory.facts.user_facts import PendingChanges
from proxy.memory.memory import Archiving, FactMemory, Memory
from tests.hurried_loop import run


class Place:
    """Whatever is closed, and a recorder that is given up after three seconds."""

    async def drain(self):
        await asyncio.sleep(3)

    async def aclose(self, within=0.0):
        pass


async def ended():
    place, promises = Place(), PendingChanges()
    archiving = Archiving(**dict.fromkeys(Archiving.__struct_fields__, place))
    facts = FactMemory(place, place, None, promises)
    others = dict.fromkeys(Memory.__struct_fields__, place)
    memory = Memory(**others | {"archiving": archiving, "facts": facts})
    promises.start([asyncio.Event().wait])
    before = asyncio.get_running_loop().time()
    await memory.aclose()
    return asyncio.get_running_loop().time() - before


def test_turns_and_promises_have_three_seconds_together():
    assert 2.9 < run(ended()) < 3.5
