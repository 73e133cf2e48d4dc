"""Which turns are looked at for facts, whose they are, and that nothing is looked at twice or lost."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from proxy.errors import UpstreamBroken
from proxy.memory.archive.archive import open_archive
from proxy.memory.archive.records import Fact
from proxy.memory.errors import InvalidFacts
from proxy.memory.facts.extraction import ENOUGH, FactExtraction, Utterance, utterance_of
from proxy.memory.facts.user_facts import FactDraft, UserFacts
from proxy.memory.session import Entry, Session, TurnRef, decode, encode
from proxy.memory.stores.codec import Plain
from proxy.memory.stores.drivers import open_store
from proxy.memory.stores.store import BlobWrite, Key, Owner
from proxy.page.timeline import lines_of

pytestmark = pytest.mark.anyio
KEY, ANN, BOB = Key("acme", "s1"), Owner("acme", "ann"), Owner("acme", "bob")


class Finding:
    """Takes each message for a fact, after failing as told."""

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.asked: list[tuple[list[str], list[str]]] = []
        self.meanwhile: Any = None
        self.replaces: str | None = None

    async def facts(
        self, said: Sequence[Utterance], known: Sequence[Fact], *, last: str | None
    ) -> Sequence[FactDraft]:
        self.asked.append(([one.text for one in said], [one.text for one in known]))
        if self.meanwhile:
            await self.meanwhile()
        if self.failures:
            raise self.failures.pop(0)
        return [FactDraft(text=one.text, evidence=(one.source,), replaces=self.replaces) for one in said]


class Bench:
    """A store, an archive, and one who learns."""

    def __init__(self, folder: Path, finding: Finding) -> None:
        self.store = open_store(f"sqlite:{folder / 's.db'}", deadline=1, codec=Plain())
        self.archive = open_archive(f"sqlite:{folder / 'a.db'}", codec=Plain())
        self.user_facts = UserFacts(self.archive)
        self.finding = finding
        self.now = 1000.0
        self.learning = FactExtraction(self.store, self.user_facts, finding, pause=20, clock=lambda: self.now)

    async def put(self, session: Session) -> None:
        held = await self.store.read(KEY)
        await self.store.write(KEY, BlobWrite(encode(session), version=held.version if held else 0, ttl=60))

    async def session(self) -> Session:
        held = await self.store.read(KEY)
        assert held
        return decode(held.blob)

    async def known(self, person: Owner = ANN) -> list[str]:
        return [fact.text for fact in await self.user_facts.current(person)]

    async def aclose(self) -> None:
        await self.store.aclose()
        await self.archive.aclose()


@pytest.fixture
async def bench(tmp_path: Path):
    made = Bench(tmp_path, Finding())
    yield made
    await made.aclose()


def entry(turn: int, text: str = "", **more: Any) -> Entry:
    return Entry(**{"role": "user", "turn": turn, "content": text or f"I have {turn} dogs.", **more})


def talk(*entries: Entry, **more: Any) -> Session:
    return Session(entries=entries, **{"user": "ann", "updated": 1000.0, "next_turn": len(entries), **more})


MANY_TURNS = [entry(i) for i in range(ENOUGH)]
MOVED = {"cold_count": 2, "next_turn": 4}


@pytest.mark.parametrize(
    ("session", "is_due"),
    [
        (talk(), False),
        (talk(*MANY_TURNS[:-1]), False),
        (talk(*MANY_TURNS), True),
        (talk(*MANY_TURNS, learned_until=TurnRef(0, 0)), False),
        (talk(*MANY_TURNS, entry(ENOUGH), learned_until=TurnRef(0, 0)), True),
        (talk(*MANY_TURNS[-5:], next_turn=ENOUGH, cold_count=2 * ENOUGH - 10), True),
        (talk(*MANY_TURNS, learned_until=TurnRef(0, ENOUGH - 1), updated=0.0), False),
        (talk(entry(0), updated=980.0), True),
        (talk(entry(0), updated=981.0), False),
        (talk(entry(0), call=1, next_turn=0), True),
        (talk(entry(0), entry(0, call=1), call=1, next_turn=1), True),
        (talk(entry(0), entry(0, call=1), call=1, next_turn=1, learned_until=TurnRef(0, 0)), False),
        (talk(entry(0, call=1), call=1, next_turn=1, cold_count=2), True),
        (talk(entry(0, call=1), call=1, next_turn=1, cold_count=2, learned_until=TurnRef(1, -1)), False),
        (talk(entry(3), **MOVED, learned_until=TurnRef(0, 1)), False),
        (talk(entry(3), **MOVED, learned_until=TurnRef(0, 1), updated=980.0), True),
        (talk(entry(3), entry(4), **MOVED, learned_until=TurnRef(0, 3)), False),
        (talk(entry(0), call=1, next_turn=0, learned_until=TurnRef(0, 0)), False),
        (talk(entry(0), user=None, updated=0.0), False),
        (talk(entry(0), shared=True, updated=0.0), False),
        (talk(entry(0, user="ann"), shared=True, updated=0.0), True),
        (talk(entry(0, user="bob"), user=None, updated=0.0), True),
        *(
            (talk(entry(0, **other), updated=0.0), False)
            for other in (
                {"role": "assistant"},
                {"role": "tool"},
                {"source": "command"},
                {"source": "silence"},
                {"source": "greeting"},
                {"source": "llm_failure"},
                {"content": " "},
            )
        ),
        *((talk(entry(0, source=source), updated=0.0), True) for source in (None, "asr", "message")),
    ],
)
async def test_what_is_due(bench: Bench, session: Session, is_due: bool) -> None:
    assert (bench.learning.due_at(session) <= bench.now) is is_due


async def test_what_was_said_is_learnt_once_and_the_rest_of_the_session_stays(bench: Bench) -> None:
    await bench.put(talk(entry(0), entry(0, "Hello", role="assistant"), entry(1), updated=0.0))
    assert await bench.learning.run(KEY, 0) is True
    assert await bench.learning.run(KEY, 0) is False
    assert bench.finding.asked == [(["I have 0 dogs.", "I have 1 dogs."], [])]
    assert await bench.known() == ["I have 0 dogs.", "I have 1 dogs."]
    session = await bench.session()
    assert session.learned_until == TurnRef(0, 1)
    assert len(session.entries) == 3
    facts = await bench.user_facts.current(ANN)
    assert [fact.evidence for fact in facts] == [("s1/0/0",), ("s1/0/1",)]


async def test_each_speaker_is_a_person_and_the_engines_name_is_the_persons(bench: Bench) -> None:
    said = [entry(0, "A", user="1001"), entry(1, "B", user="bob"), entry(2, "C"), entry(3, "D", user="ann")]
    await bench.put(talk(*said, alias="1001", updated=0.0))
    await bench.learning.run(KEY, 0)
    assert bench.finding.asked == [(["A", "C", "D"], []), (["B"], [])]
    assert await bench.known(ANN) == ["A", "C", "D"]
    assert await bench.known(BOB) == ["B"]
    assert await bench.known(Owner("acme", "1001")) == []


async def test_a_kill_between_the_facts_and_the_watermark_doubles_nothing(bench: Bench) -> None:
    session = talk(entry(0), entry(1), updated=0.0)
    for _ in range(2):
        await bench.put(session)
        await bench.learning.run(KEY, 0)
    assert await bench.known() == ["I have 0 dogs.", "I have 1 dogs."]
    assert bench.finding.asked[1][1] == ["I have 0 dogs.", "I have 1 dogs."]


async def test_turns_that_are_written_meanwhile_are_neither_lost_nor_passed_over(bench: Bench) -> None:
    await bench.put(talk(entry(0), updated=0.0))

    async def meanwhile() -> None:
        bench.finding.meanwhile = None
        await bench.put(talk(entry(0), entry(1), updated=0.0))

    bench.finding.meanwhile = meanwhile
    assert await bench.learning.run(KEY, 0)
    assert len((await bench.session()).entries) == 2
    assert await bench.learning.run(KEY, 0)
    assert [said for said, _ in bench.finding.asked] == [["I have 0 dogs."], ["I have 1 dogs."]]


async def test_who_is_forgotten_while_a_model_thinks_stays_forgotten(bench: Bench) -> None:
    await bench.put(talk(entry(0), updated=0.0))
    bench.finding.meanwhile = lambda: bench.archive.forget(ANN, at=bench.now + 1)
    await bench.learning.run(KEY, 0)
    assert await bench.known() == []


async def test_a_session_that_is_deleted_while_a_model_thinks_teaches_nothing(bench: Bench) -> None:
    await bench.put(talk(entry(0), updated=0.0))
    bench.finding.meanwhile = lambda: bench.store.delete(KEY)
    await bench.learning.run(KEY, 0)
    assert await bench.known() == []
    assert await bench.store.read(KEY) is None


async def test_a_session_that_is_made_anew_while_a_model_thinks_is_looked_at_afresh(bench: Bench) -> None:
    await bench.put(talk(entry(0), entry(1), updated=0.0, created=1.0))

    async def meanwhile() -> None:
        bench.finding.meanwhile = None
        await bench.store.delete(KEY)
        await bench.put(talk(entry(0, "I am back."), updated=0.0, created=2.0))

    bench.finding.meanwhile = meanwhile
    await bench.learning.run(KEY, 0)
    assert await bench.known() == []
    await bench.learning.run(KEY, 0)
    assert await bench.known() == ["I am back."]


async def test_a_model_that_is_away_is_asked_again_and_one_that_babbles_is_passed_over(bench: Bench) -> None:
    await bench.put(talk(entry(0), updated=0.0))
    bench.finding.failures = [UpstreamBroken("away")] * 5
    for failures in range(5):
        with pytest.raises(UpstreamBroken):
            await bench.learning.run(KEY, failures)
    bench.finding.failures = [InvalidFacts("babble")] * 2
    with pytest.raises(InvalidFacts):
        await bench.learning.run(KEY, 2)
    with pytest.raises(InvalidFacts):
        await bench.learning.run(KEY, 3)
    assert (await bench.session()).learned_until == TurnRef(0, 0)
    assert await bench.known() == []


@pytest.mark.parametrize(
    ("timestamp", "at"),
    [
        (1678890180, 1678890180.0),
        (1678890180123, 1678890180.123),
        (12345, 1700000000.0),
        (0, 1700000000.0),
        (-5, 1700000000.0),
        (1e20, 1700000000.0),
        (1e308, 1700000000.0),
        (2**53, 1700000000.0),
        (None, 1700000000.0),
    ],
)
def test_a_time_that_cannot_be_is_when_it_was_recorded(timestamp: float | None, at: float) -> None:
    said = Entry(role="user", turn=0, content="Hi", timestamp=timestamp, recorded_at=1700000000.0)
    assert utterance_of(KEY, said).at == said.at == at
    (line,) = lines_of([], [said], 0)
    assert line.at == at


async def test_who_looks_for_facts_keeps_no_session_for_longer(bench: Bench) -> None:
    session = talk(entry(0), updated=0.0)
    await bench.store.write(KEY, BlobWrite(encode(session), version=0, ttl=1))
    assert await bench.learning.run(KEY, 0) is True
    assert (await bench.session()).learned_until == TurnRef(0, 0)
    await asyncio.sleep(1.1)
    assert await bench.store.read(KEY) is None


async def test_of_two_speakers_the_one_is_learnt_of_whom_a_model_can_make_something(bench: Bench) -> None:
    await bench.put(talk(entry(0, "Blah."), entry(1, "I am Bob.", user="bob"), updated=0.0))
    bench.finding.failures = [InvalidFacts("babble")]
    with pytest.raises(InvalidFacts, match="babble"):
        await bench.learning.run(KEY, 3)
    assert await bench.known(BOB) == ["I am Bob."]
    assert (await bench.session()).learned_until == TurnRef(0, 1)


async def test_what_is_replaced_is_superseded_and_kept(bench: Bench) -> None:
    paris = await bench.user_facts.add(ANN, FactDraft(text="Lives in Paris."))
    bench.finding.replaces = paris.id
    bench.now = paris.created + 100
    await bench.put(talk(entry(0, "Lives in Berlin."), updated=0.0))
    await bench.learning.run(KEY, 0)
    assert await bench.known() == ["Lives in Berlin."]
    kept = await bench.archive.facts(ANN, now=0.0, superseded=True)
    assert [one.text for one in kept if one.superseded] == ["Lives in Paris."]


async def test_what_is_known_already_supersedes_what_it_makes_untrue(bench: Bench) -> None:
    paris = await bench.user_facts.add(ANN, FactDraft(text="Lives in Paris."))
    berlin = await bench.user_facts.add(ANN, FactDraft(text="Lives in Berlin."))
    again = await bench.user_facts.add(ANN, FactDraft(text="lives in Berlin", replaces=paris.id))
    assert again.id == berlin.id
    assert await bench.known() == ["Lives in Berlin."]
    itself = await bench.user_facts.add(ANN, FactDraft(text="Lives in Berlin.", replaces=berlin.id))
    assert itself.id == berlin.id
    assert await bench.known() == ["Lives in Berlin."]


async def test_turns_in_the_cold_part_are_looked_at_too(bench: Bench) -> None:
    cold = [entry(0, "I am old."), entry(1)]
    held = talk(entry(2), cold_count=2, updated=0.0)
    blobs = [msgspec.msgpack.encode(one) for one in cold]
    await bench.store.write(KEY, BlobWrite(encode(held), version=0, ttl=60, cold=blobs))
    await bench.learning.run(KEY, 0)
    assert bench.finding.asked[0][0] == ["I am old.", "I have 1 dogs.", "I have 2 dogs."]


async def test_a_long_talk_is_looked_at_in_pieces(bench: Bench) -> None:
    said = [entry(i // 2, f"{i} " + "word " * 1500) for i in range(12)]
    await bench.put(talk(*said, updated=0.0))
    while await bench.learning.run(KEY, 0):
        pass
    pieces = [[int(text.split()[0]) for text in said] for said, _ in bench.finding.asked]
    assert len(pieces) > 1
    assert [number for piece in pieces for number in piece] == list(range(12))
    assert all(len(piece) % 2 == 0 for piece in pieces)


def test_of_the_line_before_a_long_message_the_question_alone_is_shown() -> None:
    entry = Entry(role="user", turn=0, content="It is a long story that begins in the mountains. " * 3)
    assert utterance_of(KEY, entry, "I see. What is your name?").answering == "What is your name?"
    assert utterance_of(KEY, entry, "I see. All is done.").answering == ""
