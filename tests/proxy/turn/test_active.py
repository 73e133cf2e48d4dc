"""Of the cancellations that meet in one task, a superseded turn takes back its own and no other."""

import asyncio
import time
from collections.abc import Coroutine
from typing import Any
from unittest.mock import patch

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from filters.message import Message
from proxy.admission.gate import Keys
from proxy.clock import wall_time
from proxy.errors import RequestError, Superseded
from proxy.http.reply import Reply
from proxy.memory.stores.store import Key
from proxy.server.app import build_app
from proxy.settings.load import load
from proxy.turn import turn
from proxy.turn.active import (
    _JITTER,
    ActiveTurn,
    ActiveTurns,
    GlobalId,
    Rival,
    TurnClaim,
    is_newer,
    request_turn_id,
    supersedes,
)
from proxy.turn.request import ClientRequest
from tests.calls import call_of
from tests.conftest import AGORA
from tests.reading_client import ReadingClient

KEY = Key("default", "s1")
LONG = "tell " * 4_000
CALLED = [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]


def claim_of(request: ClientRequest) -> TurnClaim:
    return TurnClaim(request_turn_id(request), request.messages)


def asking(text: str) -> ClientRequest:
    return call_of({"messages": [{"role": "user", "content": text, "turn_id": 1}]})


async def flown(turns: ActiveTurns, text: str, reply: Reply, work: Coroutine[Any, Any, Any]) -> None:
    with ActiveTurn(turns, KEY, claim_of(asking(text)), reply):
        await work


async def begun(
    client: ReadingClient, turns: ActiveTurns, work: Coroutine[Any, Any, Any]
) -> "asyncio.Task[None]":
    """The task of an older turn that carries out ``work``, as the application runs it."""

    async def answer_turn(_raw: object, _pipeline: object, reply: Reply, _turns: object) -> None:
        await flown(turns, "Tell", reply, work)

    app = build_app(load(AGORA, {"MEMORY_URL": "memory:"}), {})
    request = client.request("/v1/chat/completions", b"{}")
    with patch.object(turn, "answer_turn", answer_turn):
        request.task = asyncio.create_task(app.answer(request))
        await asyncio.sleep(0.01)
    return request.task


async def overtake(turns: ActiveTurns, text: str = "Tell me") -> None:
    await flown(turns, text, ReadingClient().reply(), asyncio.sleep(0))


def test_a_superseded_turn_says_so_and_leaves_its_task_uncancelled():
    async def scene() -> None:
        turns, client = ActiveTurns(), ReadingClient()
        older = await begun(client, turns, asyncio.sleep(9))
        await overtake(turns)
        await older
        assert client.outcome == "superseded"
        assert older.cancelling() == 0
        assert len(turns) == 0

    asyncio.run(scene())


def test_a_turn_whose_client_has_left_already_does_not_run():
    async def scene() -> None:
        turns, client, ran = ActiveTurns(), ReadingClient(), list[bool]()

        async def work() -> None:
            ran.append(True)

        def leave(*_: object) -> str:
            client.leave()
            return "default"

        with patch.object(Keys, "admit", leave):
            await (await begun(client, turns, unrun := work()))
        unrun.close()
        assert client.outcome == "hangup"
        assert not ran

    asyncio.run(scene())


@pytest.mark.parametrize("left_first", [False, True])
def test_a_client_that_leaves_in_the_same_moment_has_left(left_first: bool):
    async def scene() -> None:
        turns, client = ActiveTurns(), ReadingClient()
        older = await begun(client, turns, asyncio.sleep(9))
        if left_first:
            client.leave()
            await asyncio.sleep(0)
        newer = asyncio.create_task(overtake(turns))
        client.leave()
        await older
        await newer
        assert client.outcome in {"hangup", "superseded"}
        assert older.cancelling() == 0
        assert len(turns) == 0

    asyncio.run(scene())


@pytest.mark.parametrize("ended_first", [False, True])
def test_the_server_s_end_in_the_same_moment_is_the_end(ended_first: bool):
    async def scene() -> None:
        turns, client = ActiveTurns(), ReadingClient()
        older = await begun(client, turns, asyncio.sleep(9))
        if ended_first:
            older.cancel()
        with ActiveTurn(turns, KEY, claim_of(asking("Tell me")), ReadingClient().reply()):
            pass
        if not ended_first:
            older.cancel()
        with pytest.raises(asyncio.CancelledError):
            await older
        assert older.cancelled()

    asyncio.run(scene())


def test_a_turn_is_superseded_once_however_many_follow():
    async def scene() -> None:
        turns, client = ActiveTurns(), ReadingClient()
        older = await begun(client, turns, asyncio.sleep(9))
        for text in ("Tell me", "Tell me more"):
            with ActiveTurn(turns, KEY, claim_of(asking(text)), ReadingClient().reply()):
                pass
        await older
        assert client.outcome == "superseded"
        assert older.cancelling() == 0

    asyncio.run(scene())


@pytest.mark.parametrize("whole", [False, True])
def test_an_answer_whose_last_bytes_are_on_their_way_is_left_alone(whole: bool):
    async def scene() -> None:
        turns, client = ActiveTurns(), ReadingClient()
        client.stall()
        reply = client.reply()
        last = (
            reply.begin(200, [], b"{}", ends=True) if whole else reply.write(b"data: [DONE]\n\n", ends=True)
        )
        older = asyncio.create_task(flown(turns, "Tell", reply, last))
        await asyncio.sleep(0.01)
        await overtake(turns)
        client.read()
        await older
        assert client.sent.endswith((b"{}", b"data: [DONE]\n\n"))

    asyncio.run(scene())


@pytest.mark.parametrize("step", [-1800.0, 1800.0])
def test_another_processes_turn_is_newer_whatever_the_clock_was_set_to(
    monkeypatch: pytest.MonkeyPatch, step: float
):
    times: list[float] = []
    elsewhere, here, real = ActiveTurns(), ActiveTurns(), time.time
    elsewhere.publish = lambda _line, turn: times.append(turn.entered_at)

    async def scene() -> None:
        client = ReadingClient()
        older = await begun(client, here, asyncio.sleep(60))
        monkeypatch.setattr(time, "time", lambda: real() + step)
        await overtake(elsewhere)
        await asyncio.sleep(0)
        here.cancel_superseded(KEY, times[0], lambda: claim_of(asking("Tell me")))
        await older
        assert client.outcome == "superseded"

    asyncio.run(asyncio.wait_for(scene(), 5))


@pytest.mark.parametrize("later", [0.02, -0.02])
def test_a_turn_that_another_host_supersedes_is_dated_before_that_though_its_own_clock_is_ahead(later: float):
    async def scene() -> None:
        turns, dated = ActiveTurns(), 0.0
        turns.publish = lambda *_: None
        with (
            pytest.raises(Superseded),
            ActiveTurn(turns, KEY, claim_of(asking("Tell")), ReadingClient().reply()) as older,
        ):
            dated = wall_time()
            turns.set_order(KEY, (b"here", 0, older.number), 5.0)
            turns.contend(KEY, Rival((b"there", 0, 1), 5.0 + later, claim_of(asking("Tell me"))))
            await asyncio.sleep(9)
        assert older.asked_at(dated) < dated - 0.1

    asyncio.run(scene())


class Host:
    """One host's part in a contest of two turns."""

    def __init__(self, number: int, claim: TurnClaim, at: float) -> None:
        self.id: GlobalId = (bytes([number]), 1, 1)
        self.claim, self.at = claim, at
        self.turns = ActiveTurns()
        self.turns.publish = lambda _slot, _turn: None

    async def enter(self) -> None:
        reply = ReadingClient().reply()
        self.turn: ActiveTurn
        with ActiveTurn(self.turns, KEY, self.claim, reply) as self.turn:
            await asyncio.Event().wait()

    def hear(self, other: "Host") -> None:
        if other is self:
            self.turns.set_order(KEY, self.id, self.at)
        else:
            self.turns.contend(KEY, Rival(other.id, other.at, sent_on_the_bus(other.claim)))


async def superseded(hosts: tuple[Host, Host], heard: list[tuple[int, int]]) -> list[bool]:
    """Of two turns at two hosts, which are cancelled; each pair is a host, and whom it hears of next."""
    tasks = [asyncio.create_task(host.enter()) for host in hosts]
    await asyncio.sleep(0)
    for listener, other in heard:
        hosts[listener].hear(hosts[other])
    for _ in range(3):
        await asyncio.sleep(0)
    ended = [task.done() for task in tasks]
    for task in tasks:
        task.cancel()
    assert all(
        isinstance(each, Superseded | asyncio.CancelledError)
        for each in await asyncio.gather(*tasks, return_exceptions=True)
    )
    return ended


texts = st.sampled_from(
    ["", "!", "?", "Tell", "tell.", "I - Tell", "Tell me", "Té", LONG, LONG + "me", LONG + "it"]
)
messages = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "user", "assistant", "system"]), "content": texts},
    optional={
        "name": st.sampled_from(["ann", "bob", None]),
        "turn_id": st.sampled_from([1, 2]),
        "metadata": st.sampled_from([{}, {"user": "ann"}, {"user": "bob", "n": 10**400}]),
        "tool_calls": st.sampled_from([[], None, CALLED]),
    },
)
talks = st.lists(messages, max_size=3)


def asked(talk):
    return claim_of(call_of({"messages": talk}))


def sent_on_the_bus(whole):
    """What arrives of it."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(whole.condensed()), type=TurnClaim)


def user_message(text):
    return {"role": "user", "content": text}


@given(talk=talks, newest=messages, other=talks)
@example(talk=[], newest=user_message("Tell me"), other=[user_message("Tell")])
@example(talk=[user_message("Hi")], newest=user_message("Tell me"), other=[user_message("Tell")])
def test_told_short_it_compares_as_the_whole(talk, newest, other):
    newer, older = asked([*talk, newest]), asked([*talk, *other])
    assert supersedes(sent_on_the_bus(newer), older) == supersedes(newer, older)


@pytest.mark.parametrize(("apart", "is_ordered_by_words"), [(0.2, True), (0.3, False)])
def test_what_a_stalled_server_reads_in_the_wrong_order_is_ordered_by_its_words(apart, is_ordered_by_words):
    longer, shorter = (asked([user_message(text) | {"turn_id": 1}]) for text in ("Tell me", "Tell"))
    assert is_newer(longer, (0.0,), shorter, (apart,)) == is_ordered_by_words
    assert is_newer(shorter, (apart,), longer, (0.0,)) != is_ordered_by_words


ORDERS = st.permutations([(0, 0), (0, 1), (1, 0), (1, 1)])


@given(
    talk=talks,
    newest=messages,
    other=messages,
    apart=st.integers(-300, 300).map(lambda n: n / 100),
    heard=ORDERS,
)
@example(
    talk=[],
    newest=user_message("Tell me"),
    other=user_message("Tell"),
    apart=0.0,
    heard=[(0, 1), (1, 0), (0, 0), (1, 1)],
)
def test_two_hosts_agree_which_turn_is_newer_whatever_they_hear_of_first(talk, newest, other, apart, heard):
    one, two = asked([*talk, newest]), asked([*talk, other])
    hosts = Host(1, one, 100.0), Host(2, two, 100.0 + apart)
    ended = asyncio.run(superseded(hosts, heard))
    newer, older = (two, one) if apart > 0 else (one, two)
    assert ended != [True, True]
    if supersedes(newer, older):
        assert ended == ([True, False] if apart > 0 else [False, True]) or not apart
    if abs(apart) < _JITTER and (supersedes(one, two) or supersedes(two, one)):
        assert any(ended)


@given(talk=talks, other=talks)
def test_told_short_it_supersedes_no_more_than_the_whole(talk, other):
    newer, older = asked(talk), asked(other)
    assert supersedes(sent_on_the_bus(newer), older) <= supersedes(newer, older)


def test_told_short_it_is_short():
    talk = [{"role": "user", "content": f"{each} {LONG}"} for each in range(100)]
    assert len(msgspec.msgpack.encode(asked(talk).condensed())) < 100_000


@pytest.mark.parametrize(
    "marks",
    [
        {"ann": {"name": "ann"}, "bob": {"name": "bob"}},
        {"ann": {"metadata": {"user": "ann"}}, "bob": {"metadata": {"user": "bob"}}},
    ],
)
def test_another_speaker_supersedes_nobody(marks):
    ann, bob = ({**user_message("Tell me"), **marks[who]} for who in ("ann", "bob"))
    older = [{**user_message("Tell"), **marks["ann"]}]
    assert supersedes(asked([ann]), asked(older))
    assert not supersedes(asked([bob]), asked(older))


def test_what_nobody_says_in_one_breath_supersedes_nothing():
    assert supersedes(asked([user_message(LONG)]), asked([user_message(LONG[:-9])]))
    assert not supersedes(asked([user_message(LONG + "me")]), asked([user_message(LONG)]))


@pytest.mark.parametrize("raw", [str(2**62 + 1), "1" * 4000, "-1" + "0" * 40, "true", '"7"', "7.0"])
def test_what_no_engine_counts_to_is_no_number(raw):
    sent = [{"role": "user", "content": "Hi", "turn_id": 3}]
    assert claim_of(call_of({"messages": sent}, raw={"turn_id": raw.encode()})).turn_id == 3


def test_of_two_of_one_number_that_are_read_at_once_the_one_with_more_words_is_newer():
    """A server that was held up may read them in another order than they were sent in."""

    def ask(text: str) -> TurnClaim:
        return claim_of(call_of({"messages": [user_message(text)], "turn_id": 7}))

    async def scene() -> None:
        turns, ended = ActiveTurns(), list[str]()

        async def answer(text: str) -> None:
            with ActiveTurn(turns, KEY, ask(text), ReadingClient().reply()):
                await asyncio.sleep(0.01)
            ended.append(text)

        outcomes = await asyncio.gather(answer("Tell me"), answer("Tell"), return_exceptions=True)
        assert ended == ["Tell me"]
        assert isinstance(outcomes[1], Superseded)

    asyncio.run(scene())


def test_a_claim_that_cannot_be_read_again_supersedes_by_its_number_alone() -> None:
    class TooDeep:
        @property
        def messages(self) -> list[Message]:
            raise RequestError("The body is nested too deeply.")

    claim = turn._claim(1, TooDeep())  # type: ignore[arg-type]
    assert supersedes(claim_of(asking("Hi")), claim)
    assert not supersedes(claim_of(asking("Hi")), turn._claim(2, TooDeep()))  # type: ignore[arg-type]
    assert not supersedes(claim_of(asking("Hi")), turn._claim(None, TooDeep()))  # type: ignore[arg-type]


def test_the_claim_of_an_active_turn_is_read_once_for_each_that_comes() -> None:
    turns, reads = ActiveTurns(), 0
    first, second = claim_of(asking("Hi")), claim_of(asking("Hello"))

    def read() -> TurnClaim:
        nonlocal reads
        reads += 1
        return first

    async def run() -> None:
        with ActiveTurn(turns, KEY, first, ReadingClient().reply()) as active:
            active.release_claim(read)
            with ActiveTurn(turns, KEY, second, ReadingClient().reply()):
                await asyncio.sleep(0)

    with pytest.raises(Superseded):
        asyncio.run(run())
    assert reads == 1
