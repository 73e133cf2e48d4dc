"""All that memory holds, with marks in the place of what must not be stored."""

import asyncio
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from filters.message import Message
from filters.redact import Redact
from proxy.errors import ConfigError
from proxy.memory.redaction import NO_REDACTION, Redaction
from proxy.memory.session import Entry, Segment, Session, encode
from proxy.memory.stores.codec import Plain
from proxy.memory.stores.session_store import SessionStore, SessionWrite
from proxy.memory.stores.store import Key
from proxy.memory.stores.volatile import VolatileStore
from proxy.settings.load import load

CARD = "4111 1111 1111 1111"
REDACTION = Redaction(Redact())
KEY = Key("default", "s1")


def call(arguments: str) -> dict[str, Any]:
    return {"id": "4111111111111111", "type": "function", "function": {"name": "pay", "arguments": arguments}}


def session() -> Session:
    entry = Entry(
        role="assistant",
        turn=0,
        content=[{"type": "text", "text": CARD}],
        original=f"{CARD}, sir",
        reasoning=f"They have {CARD}.",
        tool_calls=[call(f'{{"card": "{CARD}"}}')],
    )
    return Session(
        entries=(entry, Entry(role="user", turn=0, content="Yes.", user="+49 170 1234567")),
        unheard=(Entry(role="assistant", turn=0, content=CARD),),
        summaries=(Segment(text=f"Paid by {CARD}.", added=CARD, call=0, turn=0),),
        state={"cards": [{"n": 4111111111111111}, CARD], CARD: True},
        next_turn=1,
        user="+49 170 1234567",
    )


def test_all_of_a_session_is_marked_and_its_names_stay() -> None:
    marked = REDACTION.session(session())
    written = msgspec.json.encode(marked).decode()
    assert written.count("4111") == 1 and marked.entries[0].tool_calls[0]["id"] == "4111111111111111"  # type: ignore[index]
    assert marked.user == marked.entries[1].user == "+49 170 1234567"
    assert marked.state == {"cards": [{"n": "[card]"}, "[card]"], "[card]": True}
    assert REDACTION.session(marked) is marked


def test_what_is_clean_is_the_very_same_object() -> None:
    clean = Session(entries=(Entry(role="user", turn=0, content="I need 3 lamps at 10:30."),), next_turn=1)
    message = Message(role="user", content="I need 3 lamps.", metadata={"source": "asr", "user": "ann"})
    assert REDACTION.session(clean) is clean and REDACTION.message(message) is message
    dirty = session()
    assert NO_REDACTION.session(dirty) is dirty and not NO_REDACTION.enabled


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ('{"n": 4111111111111111}', '{"n": "[card]"}'),
        ('{"4111 1111 1111 1111": [1.5, "x"]}', '{"[card]": [1.5, "x"]}'),
        ('{"to": "ann\\u0040example.org"}', '{"to": "[email]"}'),
        ('{"to": "ann@example.org', '{"to": "[email]'),
        ('{"n": 42}', '{"n": 42}'),
        ("no JSON: 4111111111111111", 'no JSON: "[card]"'),
    ],
)
def test_what_a_tool_is_given_stays_json(given: str, kept: str) -> None:
    assert REDACTION.arguments(given) == kept


@given(st.dictionaries(st.text(max_size=5), st.sampled_from([CARD, 4111111111111111, "x", 3, None, [CARD]])))
def test_arguments_are_json_before_and_after(arguments: dict[str, Any]) -> None:
    told = REDACTION.arguments(json.dumps(arguments))
    assert "4111" not in told and json.loads(told).keys() == arguments.keys()


def test_what_is_nested_beyond_reason_is_left_out() -> None:
    nested: Any = CARD
    for _ in range(200):
        nested = [nested]
    assert CARD not in str(REDACTION.value({"deep": nested}))


def test_a_picture_is_not_looked_through() -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "4111111111111111" * 100}}
    shown = REDACTION.message(Message(role="user", content=[picture, {"type": "text", "text": CARD}]))
    assert shown.content == [{"type": "text", "text": "[image]"}, {"type": "text", "text": "[card]"}]


def test_the_store_lets_nothing_through() -> None:
    async def run() -> None:
        driver = VolatileStore()
        store = SessionStore(driver, Plain(), redaction=REDACTION)
        for way in (store.save, store.overwrite):
            held = await driver.read(KEY)
            version = held.version if held else 0
            assert await way(KEY, SessionWrite(session(), version, 60, session().entries))
            assert CARD.encode() not in (await driver.read(KEY)).blob
            assert CARD.encode() not in b"".join(await driver.cold(KEY))
            assert (await store.load(KEY)).session == REDACTION.session(session())
            assert await store.cold_entries(KEY, limit=1) == [REDACTION.entry(session().entries[0])]

    asyncio.run(run())


def test_a_session_without_such_words_is_stored_as_it_is() -> None:
    async def run() -> None:
        driver, plain = VolatileStore(), Session(state={"n": 1})
        store = SessionStore(driver, Plain(), redaction=REDACTION)
        assert await store.save(KEY, SessionWrite(plain, 0, 60))
        assert (await driver.read(KEY)).blob == encode(plain)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ("kinds: []", "say what to redact"),
        ("kinds: [cards]", "did you mean 'card'"),
        ('patterns: {x1: "x[0-9]"}', "the mark '[x1]' would be found itself"),
        ("roles: [user]", "unknown key 'roles'"),
        ('patterns: {a: "("}', "no pattern of RE2"),
    ],
)
def test_a_faulty_setting_is_refused(tmp_path: Path, options: str, fault: str) -> None:
    path = tmp_path / "turnkeeper.yaml"
    path.write_text(
        f"memory: {{sessions: 'memory:', redact: {{{options}}}}}\n"
        "upstreams: {main: {base_url: 'practice:'}}\n"
        "pipelines: {default: {upstreams: [main], request: []}}\n"
    )
    with pytest.raises(ConfigError) as error:
        load(path, {})
    assert "memory.redact" in error.value.message and fault in error.value.message
