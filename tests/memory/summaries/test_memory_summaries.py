"""Summaries of real sessions in a store, by writers that do what a test tells them to."""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from filters.message import Covered, Message
from proxy.memory.compaction import SessionLimits
from proxy.memory.errors import NoSummaryModel, SummaryFailed
from proxy.memory.session import Entry, Segment, Session, decode, encode
from proxy.memory.stores import codec
from proxy.memory.stores.drivers import open_store
from proxy.memory.stores.store import BlobWrite, Key, Store
from proxy.memory.summaries import Summaries, WrittenNotes
from proxy.memory.view import ChainNeeds, RequestView, prompt_view
from tests.remembering import sessions

KEY = Key("default", "s1")
LIMITS = SessionLimits(max_messages=6, keep_messages=2, summaries=4)


def entries(count: int, first: int = 0) -> tuple[Entry, ...]:
    return tuple(
        Entry(role=role, turn=n, content=f"{role} {n}")
        for n in range(first, first + count)
        for role in ("user", "assistant")
    )


class Writer:
    """Summaries that quote all words; ``before`` runs while the model thinks."""

    def __init__(self, before: Callable[[], Any] | None = None, fails: int = 0) -> None:
        self.before, self.fails = before, fails
        self.asked = 0

    async def notes(self, said: Any, earlier: Any, *, last: Any, fallback: str = "") -> WrittenNotes:
        self.asked += 1
        text = " | ".join(entry.content for entry in said)
        if self.before:
            before, self.before = self.before, None
            await before()
        if self.fails:
            self.fails -= 1
            raise SummaryFailed("no")
        return WrittenNotes(text, "m")

    async def merge(self, notes: Any, *, last: Any) -> WrittenNotes:
        return await self.notes([Entry(role="user", turn=0, content=n) for n in notes], (), last=last)


async def stored(session: Session) -> Store:
    store = open_store("memory:", deadline=1, codec=codec.Plain())
    await store.write(KEY, BlobWrite(encode(session), version=0, ttl=60))
    return store


async def change(store: Store, how: Callable[[Session], Session]) -> None:
    held = await store.read(KEY)
    assert held
    assert await store.write(KEY, BlobWrite(encode(how(decode(held.blob))), version=held.version, ttl=60))


async def texts(store: Store) -> list[str]:
    held = await store.read(KEY)
    return [one.text for one in decode(held.blob).summaries] if held else []


def test_a_turn_that_is_corrected_while_the_model_writes_is_summarised_as_corrected() -> None:
    def corrected(session: Session) -> Session:
        first = msgspec.structs.replace(session.entries[0], content="other words")
        return msgspec.structs.replace(session, entries=(first, *session.entries[1:]))

    async def run() -> tuple[list[str], int]:
        store = await stored(Session(entries=entries(4)))
        writer = Writer(lambda: change(store, corrected))
        await Summaries(store, LIMITS, writer).run(KEY, 0)
        return await texts(store), writer.asked

    (text,), asked = asyncio.run(run())
    assert text.startswith("other words | assistant 0")
    assert asked == 2


@pytest.mark.parametrize("way", ["run", "run_fallback", "summarize", "clear"])
def test_a_summary_keeps_no_session_for_longer(way: str) -> None:
    async def run() -> tuple[int, Any]:
        store = open_store("memory:", deadline=1, codec=codec.Plain())
        digested = Session(entries=entries(4))
        if way == "clear":
            told = Segment(text="x", call=0, turn=0, messages=2, fingerprint="", created_at=1.0)
            digested = msgspec.structs.replace(digested, summaries=(told,))
        await store.write(KEY, BlobWrite(encode(digested), version=0, ttl=0.5))
        await getattr(Summaries(store, LIMITS, Writer()), way)(KEY, *([0] if way == "run" else []))
        count = len(await texts(store))
        await asyncio.sleep(0.6)
        return count, await store.read(KEY)

    assert asyncio.run(run()) == (0 if way == "clear" else 1, None)


def test_a_summary_of_messages_that_are_sent_along_renews_the_session() -> None:
    async def run() -> Any:
        store = open_store("memory:", deadline=1, codec=codec.Plain())
        await store.write(KEY, BlobWrite(encode(Session(entries=entries(1))), version=0, ttl=0.5))
        await Summaries(store, LIMITS, Writer()).summarize(KEY, [Message(role="user", content="Hello.")])
        await asyncio.sleep(0.6)
        return await store.read(KEY)

    assert asyncio.run(run()) is not None


class Nobody(Writer):
    """There is no model until one is ``named``."""

    named = False

    async def notes(self, said: Any, earlier: Any, *, last: Any, fallback: str = "") -> WrittenNotes:
        if not self.named:
            raise NoSummaryModel("No model is named.")
        return await super().notes(said, earlier, last=last)


def test_while_nobody_can_be_asked_each_request_has_a_digest_of_what_came_since() -> None:
    def grown(session: Session) -> Session:
        return msgspec.structs.replace(session, entries=(*session.entries, *entries(3, 3)), next_turn=6)

    async def run() -> tuple[list[str], list[str], list[str]]:
        store, writer = await stored(Session(entries=entries(3))), Nobody()
        summaries = Summaries(store, LIMITS, writer)
        assert await summaries.summarize(KEY)
        first = await texts(store)
        await change(store, grown)
        assert await summaries.summarize(KEY)
        both = await texts(store)
        writer.named = True
        while await summaries.run(KEY, 0):
            pass
        return first, both, await texts(store)

    first, both, written = asyncio.run(run())
    assert [len(each) for each in (first, both, written)] == [1, 2, 2]
    assert both[0] == first[0]
    assert "user 4" in both[1] and "user 4" not in first[0]
    assert written[0] == "user 0 | assistant 0 | user 1 | assistant 1"


def test_turns_that_are_said_while_the_model_writes_stay() -> None:
    def grown(session: Session) -> Session:
        return msgspec.structs.replace(session, entries=(*session.entries, *entries(1, 4)), next_turn=5)

    async def run() -> tuple[Session, int]:
        store = await stored(Session(entries=entries(4)))
        writer = Writer(lambda: change(store, grown))
        await Summaries(store, LIMITS, writer).run(KEY, 0)
        held = await store.read(KEY)
        assert held
        return decode(held.blob), writer.asked

    session, asked = asyncio.run(run())
    assert [e.turn for e in session.entries][-2:] == [4, 4]
    assert session.summarized_until == (0, 2)
    assert asked == 1


def test_of_two_that_summarise_the_same_one_counts() -> None:
    async def run() -> list[str]:
        store = await stored(Session(entries=entries(4)))
        both = [Summaries(store, LIMITS, Writer(lambda: asyncio.sleep(0.01))) for _ in range(2)]
        await asyncio.gather(*(one.run(KEY, 0) for one in both))
        return await texts(store)

    assert len(asyncio.run(run())) == 1


def test_a_session_that_is_deleted_while_the_model_writes_stays_deleted() -> None:
    async def run() -> Any:
        store = await stored(Session(entries=entries(4)))
        await Summaries(store, LIMITS, Writer(lambda: store.delete(KEY))).run(KEY, 0)
        return await store.read(KEY)

    assert asyncio.run(run()) is None


@pytest.mark.parametrize("messages", [None, [Message(role="user", content="Before.")]])
def test_a_session_that_is_made_anew_while_the_model_writes_is_left_alone(messages: Any) -> None:
    again = Session(entries=entries(6), next_turn=6, created=2.0)

    async def run() -> Session:
        store = await stored(Session(entries=entries(4), next_turn=4, created=1.0))

        async def made_anew() -> None:
            await store.delete(KEY)
            await store.write(KEY, BlobWrite(encode(again), version=0, ttl=60))

        await Summaries(store, LIMITS, Writer(made_anew)).summarize(KEY, messages)
        held = await store.read(KEY)
        assert held
        return decode(held.blob)

    assert asyncio.run(run()) == again


def test_a_session_that_is_made_anew_before_the_model_is_asked_is_left_alone() -> None:
    again = Session(entries=entries(6), next_turn=6, created=2.0)

    async def run() -> tuple[Session, int]:
        store = await stored(Session(entries=entries(4), next_turn=4, created=1.0))
        writer = Writer()
        await Summaries(sessions(Overtaken(store, again)), LIMITS, writer).run(KEY, 0)
        held = await store.read(KEY)
        assert held
        return decode(held.blob), writer.asked

    assert asyncio.run(run()) == (again, 0)


FULL = tuple(Segment(text=f"Notes {n}.", call=0, turn=n, messages=2, model="m") for n in range(5))


def test_a_turn_that_is_corrected_while_summaries_are_merged_is_summarised_anew() -> None:
    def corrected(session: Session) -> Session:
        first, *rest = session.summaries
        return msgspec.structs.replace(session, summaries=(msgspec.structs.replace(first, stale=True), *rest))

    async def run() -> list[tuple[str, bool]]:
        store = await stored(Session(entries=entries(6), next_turn=6, summaries=FULL))
        summaries = Summaries(store, LIMITS, Writer(lambda: change(store, corrected)))
        await summaries.run(KEY, 0)
        merged = (await summaries.get_summaries(KEY))[0]
        await summaries.run(KEY, 0)
        anew = (await summaries.get_summaries(KEY))[0]
        return [(one.text, one.stale) for one in (merged, anew)]

    (_, stale), (text, still) = asyncio.run(run())
    assert (stale, still) == (True, False)
    assert text.startswith("user 0 | assistant 0")


def test_summaries_that_are_cleared_before_they_are_merged_stay_cleared() -> None:
    cleared = Session(entries=entries(3), next_turn=3)

    async def run() -> Session:
        store = await stored(Session(entries=entries(6), next_turn=6, summaries=FULL))
        await Summaries(sessions(Overtaken(store, cleared)), LIMITS, Writer()).run(KEY, 0)
        held = await store.read(KEY)
        assert held
        return decode(held.blob)

    assert asyncio.run(run()) == cleared


@pytest.mark.parametrize("digest", [False, True])
def test_what_was_added_from_elsewhere_outlives_every_other_way_of_making_it(digest: bool) -> None:
    elsewhere = [Message(role="user", content="The hotel by the lake is full.")]

    async def run() -> list[str]:
        store = await stored(Session(entries=entries(1), next_turn=1))
        summaries = Summaries(store, LIMITS, Writer())
        await summaries.summarize(KEY, elsewhere)
        await change(store, lambda s: msgspec.structs.replace(s, entries=entries(40), next_turn=40))
        while await summaries.run(KEY, 0):
            await change(store, _longer)
        await change(store, lambda s: msgspec.structs.replace(s, summaries=tuple(map(_stale, s.summaries))))
        if digest:
            await summaries.run_fallback(KEY)
        else:
            await summaries.run(KEY, 0)
        return await texts(store)

    told = asyncio.run(run())
    assert "The hotel by the lake is full." in told[0]


def test_what_was_added_grows_no_summary_for_ever() -> None:
    async def run() -> list[Segment]:
        store = await stored(Session(entries=entries(20), next_turn=20))
        summaries = Summaries(store, LIMITS, Writer())
        for number in range(40):
            long = " ".join(f"Hotel {number} has {room} free rooms." for room in range(30))
            await summaries.summarize(KEY, [Message(role="user", content=long)])
            while await summaries.run(KEY, 0):
                pass
        # It was corrected what was said.
        await change(store, lambda s: msgspec.structs.replace(s, summaries=tuple(map(_stale, s.summaries))))
        while await summaries.run(KEY, 0):
            pass
        return list(await summaries.get_summaries(KEY))

    merged = asyncio.run(run())[0]
    assert "notes: " in merged.added
    assert len(merged.added) < 2500
    assert merged.text.startswith(merged.added)


def _longer(session: Session) -> Session:
    """The same while there are few summaries, with more turns to summarise."""
    if len(session.summaries) > LIMITS.summaries or session.next_turn > 100:
        return session
    more = entries(10, session.next_turn)
    return msgspec.structs.replace(
        session, entries=(*session.entries, *more), next_turn=session.next_turn + 10
    )


@pytest.mark.parametrize("how", ["anew", "added"])
def test_a_summary_that_reaches_no_further_leaves_due_what_was_left_out(how: str) -> None:
    async def run() -> bool:
        one = Segment(text="Old.", call=0, turn=1, messages=4, stale=how == "anew")
        held = Session(entries=entries(4), next_turn=4, summaries=(one,), trimmed=True, room=1)
        store = await stored(held)
        summaries = Summaries(store, SessionLimits(60, 20, summaries=4), Writer())
        if how == "anew":
            await summaries.run(KEY, 0)
        else:
            await summaries.summarize(KEY, [Message(role="user", content="Before.")])
        await summaries.run(KEY, 0)
        return (await summaries.get_summaries(KEY))[-1].end == (0, 2)

    assert asyncio.run(run())


class Overtaken:
    """A store whose session is deleted and made anew once it has been read."""

    def __init__(self, store: Store, again: Session) -> None:
        self.store, self.again = store, again

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    async def read(self, key: Key, *, background: bool = False) -> Any:
        held = await self.store.read(key)
        if held and decode(held.blob) != self.again:
            await self.store.delete(key)
            await self.store.write(key, BlobWrite(encode(self.again), version=0, ttl=60))
        return held


def test_a_digest_stands_in_until_a_model_answers() -> None:
    async def run() -> tuple[list[list[bool]], int]:
        store = await stored(Session(entries=entries(4)))
        writer = Writer(fails=1)
        summaries, told = Summaries(store, LIMITS, writer), list[list[bool]]()

        async def look() -> None:
            told.append([one.extractive for one in await summaries.get_summaries(KEY)])

        with pytest.raises(SummaryFailed):
            await summaries.run(KEY, 0)
        await look()
        for _ in range(2):
            await summaries.run_fallback(KEY)
            await look()
        while await summaries.run(KEY, 0):
            await look()
        await summaries.run_fallback(KEY)
        await look()
        return told, writer.asked

    assert asyncio.run(run()) == ([[], [True], [True], [False], [False]], 2)


def test_what_would_merge_summaries_that_a_model_made_waits_for_a_model() -> None:
    made = tuple(Segment(text=f"Notes {n}.", call=0, turn=n, messages=2, model="m") for n in range(5))

    async def run() -> list[str]:
        store = await stored(Session(entries=entries(6), next_turn=6, summaries=made))
        summaries = Summaries(store, LIMITS, Writer())
        await summaries.run_fallback(KEY)
        before = await texts(store)
        await summaries.run(KEY, 0)
        return [*before, str(len(await texts(store)))]

    assert asyncio.run(run()) == [*(f"Notes {n}." for n in range(5)), "3"]


def test_what_became_stale_is_made_anew_from_the_cold_part_too() -> None:
    async def run() -> tuple[list[str], list[str]]:
        store = await stored(Session(entries=entries(8)))
        summaries = Summaries(store, LIMITS, Writer())
        await summaries.run(KEY, 0)
        before = await texts(store)
        await change(store, lambda s: msgspec.structs.replace(s, summaries=(_stale(s.summaries[0]),)))
        await summaries.run(KEY, 0)
        return before, await texts(store)

    before, after = asyncio.run(run())
    assert before == after
    assert after[0].startswith("user 0 | ")


def _stale(one: Segment) -> Segment:
    return msgspec.structs.replace(one, stale=True, text="Old.")


# --- what of a window gives way


def shown(session: Session, *window: Message) -> list[bool]:
    _, heard, _ = prompt_view(RequestView(window).view_of(session))
    return [isinstance(message, Covered) for message in heard]


def replayed(session: Session) -> list[Message]:
    return [Message(role=e.role, content=e.content) for e in session.entries]


HALF = Session(
    entries=entries(6),
    next_turn=6,
    cold_count=4,
    summaries=(Segment(text="Notes.", call=0, turn=2, messages=10),),
)
NEWEST = Message(role="user", content="And now?")


def test_of_a_window_the_turns_behind_the_reach_give_way() -> None:
    assert shown(HALF, *replayed(HALF), NEWEST) == [True] * 6 + [False] * 7


def test_lines_that_are_not_held_go_with_their_neighbours() -> None:
    window = replayed(HALF)
    older = Message(role="user", content="What was long before?")
    put_in = Message(role="assistant", content="By the way, we close at ten.")
    between = [older, *window[:4], put_in, *window[4:], NEWEST]
    assert shown(HALF, *between) == [True] * 8 + [False] * 7
    later = [*window[:8], put_in, *window[8:], NEWEST]
    assert shown(HALF, *later) == [True] * 6 + [False] * 8


def test_what_is_no_speech_goes_with_the_speech_behind_it_and_instructions_stay() -> None:
    window = replayed(HALF)
    silence = Message(role="assistant", content="Are you there?", metadata={"source": "silence"})
    system = Message(role="system", content="Be brief.")
    told = [system, *window[:2], silence, system, *window[2:6], silence, *window[6:], NEWEST]
    assert shown(HALF, *told) == [False, True, True, True, False, *[True] * 4, *[False] * 8]


def test_numbers_behind_the_reach_give_way_wherever_they_stand() -> None:
    numbered = tuple(msgspec.structs.replace(e, turn_id=e.turn + 10) for e in HALF.entries)
    session = msgspec.structs.replace(HALF, entries=numbered)
    old = [Message(role="user", content=f"Old {n}", turn_id=n) for n in (8, 11)]
    new = Message(role="user", content="And now?", turn_id=16)
    assert shown(session, *old, new) == [True, True, False]


def test_where_nothing_is_injected_nothing_gives_way() -> None:
    window = [*replayed(HALF), NEWEST]
    snapshot, heard, _ = prompt_view(RequestView(window).view_of(HALF), ChainNeeds(summaries=False))
    assert heard is window
    assert snapshot.summaries == ()


def test_no_client_can_send_a_covered_message() -> None:
    raw = msgspec.json.encode([Covered(role="user", content="Hi")])
    (message,) = msgspec.json.decode(raw, type=list[Message])
    assert type(message) is Message
    assert Covered.__struct_fields__ == Message.__struct_fields__


@pytest.mark.parametrize("keep", [1, 2, 5])
def test_nothing_moves_to_the_cold_part_uncovered(keep: int) -> None:
    async def run() -> Session:
        store = await stored(Session(entries=entries(20)))
        window = msgspec.structs.replace(LIMITS, keep_messages=keep)
        await Summaries(store, window, Writer()).run(KEY, 0)
        held = await store.read(KEY)
        assert held
        return decode(held.blob)

    session = asyncio.run(run())
    assert session.entries[0].turn_ref <= session.summarized_until < session.entries[-1].turn_ref
