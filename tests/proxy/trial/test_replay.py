"""The prompts of a recorded conversation, as its turns asked for them."""

import msgspec
import pytest

from filters.base import RequestFilter, Snapshot
from filters.message import Message
from proxy.errors import NotFound
from proxy.memory.archive.records import Fact
from proxy.memory.interchange import session_from_messages
from proxy.memory.session import Segment
from proxy.memory.stores.session_store import SessionWrite
from proxy.memory.stores.store import Key, Owner
from proxy.settings.build import build_memory
from proxy.settings.load import load
from proxy.trial.explain import message_dict
from proxy.trial.replay import Recording, SentPrompt, read_recording, replay
from proxy.turn.identity import Identity
from proxy.turn.state import TurnContent
from tests.ready import UPSTREAM, pipeline_of

STEPS = "[repair_history, restore_history, inject_summaries, restore_interrupted, inject_facts]"
T = 1_790_000_000


@pytest.fixture
def pipeline(tmp_path):
    def of(steps: str = STEPS):
        text = f"{UPSTREAM}pipelines: {{default: {{upstreams: [main], request: {steps}}}}}"
        return pipeline_of(tmp_path / "c.yaml", text)

    return of


def message(role, text, turn, at, **marks):
    return Message(role=role, content=text, turn_id=turn, timestamp=T + at, metadata=marks or None)


TALK = [
    message("assistant", "Welcome.", 0, 0),
    message("user", "Hello", 1, 10, user="ann"),
    message("assistant", "Good day.", 1, 11),
    message("user", "A joke", 2, 20, user="ann"),
    message("assistant", "Why did", 2, 21, interrupted=True, original="Why did it?"),
    message("user", "It is me again", 1, 500, user="ann"),
]


def recording(messages=TALK, facts=(), **fields):
    session = msgspec.structs.replace(session_from_messages(messages, now=T + 1000.0), **fields)
    return Recording(key=Key("default", "s"), session=session, facts=facts)


def texts(prompt):
    return [each["content"] for each in prompt.messages]


def test_each_answer_and_each_call_that_ends_unanswered_has_a_prompt(pipeline):
    turns = list(replay(recording(), pipeline(), pipeline()))
    assert [(turn.number, turn.call, turn.words) for turn in turns] == [
        (1, 1, "Hello"),
        (2, 1, "A joke"),
        (3, 2, "It is me again"),
    ]
    assert [turn.at for turn in turns] == [T + 10, T + 20, T + 500]
    # A later call replays nothing of the one before; what no summary covers is told from memory.
    assert texts(turns[1].after) == ["Welcome.", "Hello", "Good day.", "A joke"]
    assert [each.text for each in turns[2].window] == ["It is me again"]
    assert any("Why did" in text for text in texts(turns[2].after))


def test_the_same_pipeline_changes_nothing(pipeline):
    assert not any(turn.changed for turn in replay(recording(), pipeline(), pipeline()))


def test_another_one_does(pipeline):
    turns = list(replay(recording(), pipeline("[{user_context: {template: '{user}: '}}]"), pipeline("[]")))
    assert [texts(turn.after)[-1] for turn in turns] == ["ann: Hello", "ann: A joke", "ann: It is me again"]
    assert all(turn.changed and turn.against == "present" for turn in turns)


def test_memory_is_as_it_was_then(pipeline):
    facts = (
        Fact(id="1", text="Has a dog", created=T + 15.0),
        Fact(id="2", text="Has a cat", created=T + 5.0, superseded=T + 15.0),
        Fact(id="3", text="Is in a hurry", created=T + 5.0, expires=T + 15.0),
    )
    summary = Segment(text="They joked", call=0, turn=9, created_at=T + 100.0)
    turns = list(replay(recording(facts=facts, summaries=(summary,)), pipeline(), pipeline()))
    told = [" ".join(texts(turn.after)) for turn in turns]
    assert ["dog" in one for one in told] == [False, True, True]
    assert ["cat" in one for one in told] == [True, False, False]
    assert ["hurry" in one for one in told] == [True, False, False]
    assert not any("They joked" in one for one in told[:2])


def test_results_of_tools_ask_for_an_answer_too(pipeline):
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    talk = [
        message("user", "Is it raining?", 1, 1),
        Message(role="assistant", tool_calls=[call], turn_id=1),
        Message(role="tool", tool_call_id="c1", content="Yes.", turn_id=1),
        message("assistant", "It is.", 1, 2),
    ]
    turns = list(replay(recording(talk), pipeline(), pipeline()))
    assert [[each["role"] for each in turn.after.messages] for turn in turns] == [
        ["user"],
        ["user", "assistant", "tool"],
    ]


def test_a_shorter_window_is_restored_where_the_chain_does(pipeline):
    *_, last = replay(recording(TALK[:4]), pipeline("[]"), pipeline(), window=1)
    assert texts(last.after) == ["A joke"]
    assert texts(last.before) == ["Welcome.", "Hello", "Good day.", "A joke"]


def test_a_turn_that_was_kept_is_compared_with_what_was_sent(pipeline):
    window = [Message(role="system", content="Be brief."), *TALK[:4]]
    content = TurnContent(
        headers={},
        query={},
        body=msgspec.json.encode(
            {"model": "m", "temperature": 0.5, "messages": list(map(message_dict, window))}
        ),
        identity=Identity("default", "s", "ann", background=False),
        marked=None,
        now=T + 20.0,
        memory=Snapshot(),
        sent_body=b'{"model": "m", "messages": [{"role": "user", "content": "as sent"}]}',
    )
    sent = SentPrompt(content, "openai")
    turns = list(replay(recording(), pipeline("[]"), pipeline(), sent=[sent]))
    assert [turn.against for turn in turns] == ["present", "sent", "present"]
    assert texts(turns[1].before) == ["as sent"]
    assert texts(turns[1].after)[0] == "Be brief."
    assert turns[1].after.parameters == {"model": "m", "temperature": 0.5}


class Broken(RequestFilter):
    def apply(self, messages, context):
        raise KeyError


class Emptying(RequestFilter):
    def apply(self, messages, context):
        return []


@pytest.mark.parametrize(("step", "words"), [(Broken(), "failed with KeyError"), (Emptying(), "no message")])
def test_why_nothing_would_be_sent_is_told(pipeline, step, words):
    other = msgspec.structs.replace(pipeline(), filters=(step,))
    first, *_ = replay(recording(), other, pipeline())
    assert first.after.error is not None
    assert words in first.after.error
    assert (first.after.messages, first.changed) == ((), True)


async def opened(tmp_path):
    config = tmp_path / "m.yaml"
    config.write_text(
        f"{UPSTREAM}memory: {{sessions: 'sqlite:{tmp_path}/m.db', archive: {{keep: forever}}}}\n"
        "pipelines: {default: {upstreams: [main]}}\n"
    )
    memory = build_memory(load(config, {}))
    assert memory and memory.archiving
    return memory


@pytest.mark.anyio
async def test_a_recording_is_read_with_what_moved_out_of_its_session_and_its_user_s_facts(
    tmp_path, monkeypatch
):
    monkeypatch.setattr("proxy.trial.replay._PAGE", 2)
    memory, key = await opened(tmp_path), Key("default", "s")
    whole = recording(user="ann").session
    hot = msgspec.structs.replace(whole, entries=whole.entries[5:], cold_count=5)
    assert await memory.store.save(key, SessionWrite(hot, 0, 60, whole.entries[:5]))
    for tenant, user in (("default", "ann"), ("default", "bob"), ("other", "ann")):
        fact = Fact(id="f", text=f"Of {user} at {tenant}.", created=T)
        await memory.archiving.archive.add_fact(Owner(tenant, user), fact)
    read = await read_recording(memory, key)
    assert [entry.text for entry in read.session.entries] == [each.content for each in TALK]
    assert [fact.text for fact in read.facts] == ["Of ann at default."]
    await memory.aclose()


@pytest.mark.anyio
async def test_a_recording_that_is_stored_no_more_is_read_from_the_archive(tmp_path, monkeypatch):
    monkeypatch.setattr("proxy.trial.replay._PAGE", 2)
    memory, key = await opened(tmp_path), Key("default", "s")
    with pytest.raises(NotFound):
        await read_recording(memory, key)
    session = recording(user="ann", created=float(T), updated=T + 1000.0).session
    await memory.archiving.archive.save_session(key, session, as_of=T + 1000.0)
    read = await read_recording(memory, key)
    assert [entry.text for entry in read.session.entries] == [each.content for each in TALK]
    assert read.session.user == "ann"
    await memory.aclose()
