"""The memory tools of one user: every call of a model gets a result."""

import asyncio
import json
import time

import pytest

from proxy.memory.archive.recall import Retriever, VectorSearch
from proxy.memory.errors import StoreError
from proxy.memory.facts.user_facts import PendingChanges, UserFacts
from proxy.memory.stores.store import Owner
from proxy.tools.memory_tools import TOOLS, MemoryTools, Offer
from proxy.tools.rounds import Dialogue, Tools
from tests.hurried_loop import run
from tests.peers.fake_upstream import delta

pytestmark = pytest.mark.anyio
ANN = Owner("default", "ann")


@pytest.fixture
def anyio_backend():
    return "asyncio"


class Shelf:
    """Facts in a list, and an archive that finds nothing."""

    def __init__(self):
        self.kept = []

    async def add_fact(self, person, fact):
        self.kept.append(fact)

    async def facts(self, person, *, now, superseded=False):
        return list(self.kept)

    async def remove_fact(self, person, fact):
        left = [one for one in self.kept if one.id != fact]
        gone, self.kept = len(left) < len(self.kept), left
        return gone

    async def search(self, person, query):
        return []


class Slow(Shelf):
    """One whose writes take their time."""

    def __init__(self, seconds):
        super().__init__()
        self.seconds = seconds

    async def add_fact(self, person, fact):
        await asyncio.sleep(self.seconds)
        await super().add_fact(person, fact)

    async def remove_fact(self, person, fact):
        await asyncio.sleep(self.seconds)
        return await super().remove_fact(person, fact)


class Dead(Shelf):
    async def facts(self, person, *, now, superseded=False):
        raise StoreError("gone")

    async def remove_fact(self, person, fact):
        raise StoreError("gone")

    async def search(self, person, query):
        raise StoreError("gone")


def tools_of(shelf, person=ANN, likeness=None, promises=None):
    finder = Retriever(shelf, vectors=likeness)
    return MemoryTools(person, UserFacts(shelf), finder, pending_changes=promises, at=time.time())


async def tool_result(name, arguments, shelf=None, person=ANN):
    shelf = shelf or Shelf()
    until = asyncio.get_running_loop().time() + 5
    tools = tools_of(shelf, person)
    found = json.loads(await tools.run(name, arguments, until))
    await tools.settle()
    return found


class Hanging(Shelf):
    async def facts(self, *_, **__):
        await asyncio.Event().wait()

    remove_fact = search = facts


DEEP = '{"text": "Ann is tall.", "query": "Ann", "id": "1", "more": ' + "[" * 50_000 + "]" * 50_000 + "}"


@pytest.mark.parametrize("name", TOOLS)
@pytest.mark.parametrize(
    "arguments",
    [
        "",
        "null",
        "[]",
        "{",
        "{}",
        '{"text": 7, "query": 7, "id": 7}',
        '{"text": "", "query": "", "id": ""}',
        DEEP,
    ],
    ids=["nothing", "null", "a list", "half", "empty", "numbers", "no words", "deep"],
)
async def test_arguments_that_cannot_be_used_are_told_so(name, arguments):
    shelf = Shelf()
    assert "cannot be used" in (await tool_result(name, arguments, shelf))["error"]
    assert shelf.kept == []


@pytest.mark.parametrize("name", TOOLS)
async def test_memory_that_fails_is_told_so(name):
    arguments = '{"text": "Ann is tall.", "query": "Ann", "id": "1"}'
    assert "does not answer" in (await tool_result(name, arguments, Dead()))["error"]


async def test_what_is_stored_can_be_forgotten_and_of_nobody_nothing_is_kept():
    shelf = Shelf()
    stored = await tool_result("memory_store", '{"text": "Ann is tall."}', shelf)
    assert [(fact.id, fact.text, fact.expires) for fact in shelf.kept] == [
        (stored["id"], "Ann is tall.", None)
    ]
    forget = json.dumps({"id": stored["id"]})
    assert await tool_result("memory_forget", forget, shelf) == {"forgotten": True}
    assert await tool_result("memory_forget", forget, shelf) == {"forgotten": False}
    nobody = await tool_result("memory_store", '{"text": "Ann is tall."}', shelf, Owner("default"))
    assert "error" in nobody
    assert shelf.kept == []


async def test_what_is_to_be_replaced_and_is_not_known_is_told_so():
    shelf = Shelf()
    stored = await tool_result("memory_store", '{"text": "Ann is tall.", "replaces": "Ann is small."}', shelf)
    assert stored["stored"] is True and stored["replaced"] is False
    again = await tool_result(
        "memory_store", f'{{"text": "Ann is tall.", "replaces": "{stored["id"]}"}}', shelf
    )
    assert again["id"] == stored["id"] and "replaced" not in again


async def test_what_was_stored_a_moment_ago_can_be_replaced():
    shelf = Shelf()
    tools, until = tools_of(shelf), asyncio.get_running_loop().time() + 5
    for arguments in ('{"text": "Ann is tall."}', '{"text": "Ann is small.", "replaces": "ann is tall"}'):
        await tools.run("memory_store", arguments, until)
    found = json.loads(await tools.run("memory_recall", '{"query": "Ann"}', until))["found"]
    assert [one["text"] for one in found] == ["Ann is small."]
    await tools.settle()
    tall, small = shelf.kept
    assert small.replaces == tall.id


class Round:
    """A round in which all three tools are called, twice each."""

    text, side_calls, usage, silent = "", (), {}, False
    calls = tuple(
        {"id": "", "function": {"name": name, "arguments": '{"text": "Ann.", "query": "Ann", "id": "1"}'}}
        for name in (*TOOLS, *TOOLS)
    )


async def carried_on(dialogue):
    """How long a round takes, in the loop's time."""
    started = asyncio.get_running_loop().time()
    await dialogue.run_calls(Round())
    return asyncio.get_running_loop().time() - started


def test_all_calls_of_a_round_together_wait_two_seconds_for_memory():
    dialogue = Dialogue(Tools(Offer({}, frozenset(TOOLS), {}, {}), tools_of(Hanging()), 4))
    assert 1.9 < run(carried_on(dialogue)) < 3.5
    _, *results = dialogue.messages
    assert len(results) == 6
    assert all("does not answer" in each.content for each in results)


class Many(Round):
    calls = tuple(
        {"id": "", "function": {"name": "memory_store", "arguments": json.dumps({"text": f"Fact {number}."})}}
        for number in range(12)
    )


async def test_of_a_turn_no_more_is_told_to_be_stored_than_a_server_that_ends_has_time_for():
    shelf, promises = Slow(0.01), PendingChanges()
    tools = tools_of(shelf, promises=promises)
    dialogue = Dialogue(Tools(Offer({}, frozenset(TOOLS), {}, {}), tools, 4))
    for _ in range(2):
        await dialogue.run_calls(Many())
    results = [json.loads(each.content) for each in dialogue.messages if each.role == "tool"]
    assert ["stored" in each for each in results] == [True] * 20 + [False] * 4
    assert "20 calls" in results[-1]["error"]
    tools.commit()
    await promises.drain()
    assert len(shelf.kept) == 12


async def test_what_a_model_thinks_is_not_heard():
    shelf = Shelf()
    dialogue = Dialogue(Tools(Offer({}, frozenset(TOOLS), {}, {}), tools_of(shelf), 4))
    await dialogue.run_calls(Many())
    for heard in ({"reasoning_content": "Well, "}, {"content": " "}):
        dialogue.commit_if_reached(delta(**heard))
    await asyncio.sleep(0)
    assert shelf.kept == []
    dialogue.commit_if_reached(delta(content="Noted."))
    await asyncio.sleep(0)
    assert shelf.kept


async def test_what_is_being_stored_is_known_to_later_calls_of_its_turn():
    shelf = Slow(0.01)
    tools = tools_of(shelf)

    async def call(name, **arguments):
        until = asyncio.get_running_loop().time() + 5
        return json.loads(await tools.run(name, json.dumps(arguments), until))

    stored = await call("memory_store", text="Ann is tall.")
    tools.commit()
    assert await call("memory_store", text="ann is tall") == stored
    found = await call("memory_recall", query="tall")
    assert [one["id"] for one in found["found"]] == [stored["id"]]
    assert await call("memory_forget", id=stored["id"]) == {"forgotten": True}
    await tools.settle()
    assert shelf.kept == []


class Mute:
    """A model that never says what anything means."""

    model = "m"

    async def vectors(self, texts):
        await asyncio.Event().wait()


class Twice(Round):
    calls = Round.calls[1::3]


def test_a_model_that_helps_the_search_and_is_silent_leaves_each_call_of_a_round_its_answer():
    runner = tools_of(Shelf(), likeness=VectorSearch(Mute(), 0.4, 0.5))
    dialogue = Dialogue(Tools(Offer({}, frozenset(TOOLS), {}, {}), runner, 4))
    run(dialogue.run_calls(Twice()))
    assert [each.content for each in dialogue.messages[1:]] == ['{"found":[]}'] * 2
