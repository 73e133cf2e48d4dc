"""An agent's context, put together as its specification's example does."""

import asyncio
from pathlib import Path

import pytest

from proxy.memory import ContextManager, get_short_term_memory
from tests.peers.redis_server import LOOPBACK, RedisServer, free_port

pytestmark = pytest.mark.anyio

QUERY = "Generate a tweet about AI ethics"


@pytest.fixture
def soul(tmp_path: Path) -> Path:
    path = tmp_path / "SOUL.md"
    path.write_text("You are Nova.\n", encoding="utf-8")
    return path


async def test_its_example_works(soul: Path, redis_single: RedisServer):
    redis_single.ask("FLUSHALL")
    short_term = get_short_term_memory(url=redis_single.url)
    kept = await short_term.add_interaction("posted_tweet", "Shipped it!", platform="x")
    context = await ContextManager(soul_path=str(soul)).assemble_context(
        input_query=QUERY, short_term_manager=short_term
    )
    await short_term.disconnect()
    beginning, memories, end = context.split("\n\n")
    assert (beginning, end) == ("You are Nova.", QUERY)
    assert f"[{kept.timestamp:%H:%M}] posted_tweet on x: Shipped it!" in memories.splitlines()


async def test_without_memories_there_is_no_fence(soul: Path):
    memory = get_short_term_memory(url="memory:")
    manager = ContextManager(soul)
    assert await manager.assemble_context(QUERY, memory) == f"You are Nova.\n\n{QUERY}"
    assert await manager.assemble_context(QUERY) == f"You are Nova.\n\n{QUERY}"
    await memory.disconnect()


async def test_only_the_newest_are_told(soul: Path):
    memory = get_short_term_memory(url="memory:")
    for number in range(5):
        await memory.add_interaction("thought", f"<{number}>")
    context = await ContextManager(soul, limit=2).assemble_context(QUERY, memory)
    told = [line[-3:] for line in context.splitlines() if "thought" in line]
    assert told == [
        "\u20394\u203a",
        "\u20393\u203a",
    ]
    await memory.disconnect()


async def test_a_dead_memory_costs_the_memories_alone(soul: Path):
    memory = get_short_term_memory(url=f"redis://{LOOPBACK}:{free_port()}/0")
    assert await ContextManager(soul).assemble_context(QUERY, memory) == f"You are Nova.\n\n{QUERY}"
    await memory.disconnect()


async def test_an_agent_without_a_soul_still_has_a_query(tmp_path: Path):
    assert await ContextManager(tmp_path / "SOUL.md").assemble_context(QUERY) == QUERY


async def test_a_soul_that_changes_is_read_anew(soul: Path):
    manager = ContextManager(soul)
    await manager.assemble_context(QUERY)
    await asyncio.to_thread(soul.write_text, "You are Mia.")
    assert (await manager.assemble_context(QUERY)).startswith("You are Mia.")
