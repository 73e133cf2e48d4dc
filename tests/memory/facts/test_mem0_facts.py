"""What Mem0 does beyond the contract of facts; its library is stood in for here, and real in clients."""

from pathlib import Path
from typing import Any

import pytest

from proxy.memory.archive.records import Fact
from proxy.memory.errors import StoreError
from proxy.memory.facts.mem0 import Mem0
from proxy.memory.facts.user_facts import FactDraft, UserFacts
from proxy.memory.stores.store import Owner
from proxy.settings.load import check_config
from tests.memory.mem0_library import Library

pytestmark = pytest.mark.anyio
ANN = Owner("acme", "ann")


def fact(name: str, text: str, **more: Any) -> Fact:
    return Fact(**{"id": name, "text": text, "created": 10.0, **more})


async def texts(facts: Mem0, person: Owner = ANN, now: float = 20.0, **more: Any) -> list[str]:
    return [one.text for one in await facts.facts(person, now=now, **more)]


async def test_a_fact_that_is_learnt_again_replaces_what_it_is_said_to() -> None:
    facts = Mem0(Library())
    user_facts = UserFacts(facts)
    berlin = await user_facts.add(ANN, FactDraft(text="Lives in Berlin."))
    paris = await user_facts.add(ANN, FactDraft(text="Lives in Paris."))
    again = await user_facts.add(ANN, FactDraft(text="Lives in Berlin.", importance=0.9, replaces=paris.id))
    assert (again.id, again.importance) == (berlin.id, 0.9)
    assert await user_facts.current(ANN) == [again]
    assert sorted(await texts(facts, superseded=True)) == ["Lives in Berlin.", "Lives in Paris."]


async def test_a_person_is_forgotten_in_the_history_too_and_what_comes_late_is_refused() -> None:
    library = Library()
    facts = Mem0(library)
    await facts.add_fact(ANN, fact("a", "Lives in Paris."))
    assert await facts.forget(ANN, at=50.0) == {"facts": 1}
    await facts.add_fact(ANN, fact("b", "Lives in Rome.", created=49.0))
    assert (library.rows, library.db.texts) == ({}, [])
    await facts.add_fact(ANN, fact("c", "Lives in Berlin.", created=51.0))
    assert await texts(facts) == ["Lives in Berlin."]


async def test_what_another_program_put_there_is_known() -> None:
    library = Library()
    facts = Mem0(library)
    library.add([{"content": "Likes jazz."}], user_id="acme/ann", metadata=None, infer=False)
    (one,) = await facts.facts(ANN, now=20.0)
    assert (one.id, one.text) == ("row0", "Likes jazz.")
    assert await facts.remove_fact(ANN, "row0") is True


async def test_a_failure_tells_no_word() -> None:
    library = Library()
    library.broken = True
    with pytest.raises(StoreError) as caught:
        await Mem0(library).add_fact(ANN, fact("a", "Lives in Paris."))
    assert "Paris" not in str(caught.value)


def test_without_the_library_the_configuration_says_what_to_install(tmp_path: Path) -> None:
    text = """
memory: {sessions: "memory:", facts: {upstream: main, store: mem0}}
upstreams: {main: {base_url: "practice:"}}
pipelines: {default: {upstreams: [main]}}
"""
    file = tmp_path / "c.yaml"
    file.write_text(text)
    (fault,) = check_config(file, {}).errors
    assert fault.path == "memory.facts.store"
    assert "turnkeeper[mem0]" in fault.message
