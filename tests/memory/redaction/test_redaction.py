"""Everything that memory stores has marks instead of redacted data."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from filters.message import Message
from filters.redact import Redact
from filters.text.personal import Sensitive
from proxy.errors import ConfigError
from proxy.memory.redacted_view import WindowRedaction
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
        ("[4111111111111111, 17, 4111111111111111]", '["[card]", 17, "[card]"]'),
        ('{"a": "\\u0041", "b": "4111111111111111"}', '{"a": "\\u0041", "b": "[card]"}'),
        ('{"a": "to\nann\\u0040example.org"}', '{"a": "to\\n[email]"}'),
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


PLACES = {
    "content": CARD,
    "parts": [{"type": "text", "text": CARD}],
    "odd part": [{"type": "other", "deep": [{CARD: [CARD, 4111111111111111]}]}],
}
CALLS = {
    "arguments": {
        "id": "c",
        "type": "function",
        "function": {"name": "f", "arguments": f'{{"a": "{CARD}"}}'},
    },
    "input": {"id": "c", "type": "custom", "custom": {"name": "f", "input": CARD}},
    "arguments that are none": {"id": "c", "function": {"name": "f", "arguments": {"a": {"name": CARD}}}},
    "arguments in a list": {"id": "c", "function": {"name": "f", "arguments": [CARD]}},
    "beside": {"id": "c", "function": {"name": "f", "arguments": "{}"}, "note": {"deep": [CARD]}},
}
MESSAGES = (
    [Message(role="user", content=content) for content in PLACES.values()]
    + [Message(role="assistant", tool_calls=[call]) for call in CALLS.values()]
    + [
        Message(role="assistant", content="Yes.", metadata={"source": "llm", "original": f"{CARD}, sir"}),
        Message(role="assistant", content="Yes.", others={"original": f"{CARD}, sir", "kind": "x"}),
        Message(role="assistant", content="Yes.", others={"reasoning_content": f"They gave {CARD}."}),
        Message(role="assistant", others={"function_call": {"name": "f", "arguments": f'{{"a": "{CARD}"}}'}}),
    ]
)
ENTRIES = (
    [Entry(role="user", turn=0, content=content) for content in PLACES.values()]
    + [Entry(role="assistant", turn=0, tool_calls=[call]) for call in CALLS.values()]
    + [
        Entry(role="assistant", turn=0, content="Yes.", original=CARD),
        Entry(role="assistant", turn=0, content="Yes.", reasoning=CARD),
    ]
)


@pytest.mark.parametrize("redact", [REDACTION.message, REDACTION.entry], ids=["message", "entry"])
def test_each_place_alone_is_marked_and_all_else_stays(redact: Any) -> None:
    for one in MESSAGES if redact == REDACTION.message else ENTRIES:
        before, after = msgspec.json.encode(one).decode(), msgspec.json.encode(redact(one)).decode()
        for form in (CARD, "4111111111111111"):
            before = (
                before.replace(f":{form}", ':"[card]"')
                .replace(f",{form}", ',"[card]"')
                .replace(form, "[card]")
            )
        assert after == before
        assert redact(redact(one)) is redact(one) or redact(redact(one)) == redact(one)
        clean = msgspec.json.decode(after, type=type(one))
        assert redact(clean) is clean


@pytest.mark.parametrize("name", ["id", "type", "index", "name"])
def test_names_and_ids_of_a_call_stay_and_those_among_its_arguments_do_not(name: str) -> None:
    stay = {"id": "c", name: CARD, "function": {name: CARD, "form": {name: CARD}}}
    assert REDACTION.tool_calls([stay]) == [stay]
    (marked,) = REDACTION.tool_calls([{"function": {"form": {"deep": {name: CARD}}, name: [CARD]}}])
    assert marked == {"function": {"form": {"deep": {name: "[card]"}}, name: ["[card]"]}}


def test_the_arguments_of_a_call_stay_json() -> None:
    (marked,) = REDACTION.tool_calls([call('{"n": 4111111111111111}')])
    assert marked["function"]["arguments"] == '{"n": "[card]"}'


def test_no_value_is_taken_for_its_text_but_a_number() -> None:
    marking = Redaction(Redact(kinds=(), patterns={"word": "True|None|17"}))
    assert marking.value([True, None, 17, 17.5, "True"]) == [True, None, "[word]", "[word].5", "[word]"]


@pytest.mark.parametrize("wrap", [lambda each: [each], lambda each: {"a": each}])
def test_values_are_read_to_a_depth_of_64(wrap: Callable[[Any], Any]) -> None:
    def nested(value: Any, depth: int) -> Any:
        for _ in range(depth):
            value = wrap(value)
        return value

    assert REDACTION.value(nested(CARD, 65)) == nested("[card]", 65)
    assert REDACTION.value(nested(17, 65)) == nested(17, 65)
    assert REDACTION.value(nested(CARD, 66)) == nested(None, 65)


def test_no_other_text_lets_a_number_pass() -> None:
    # Two digits each as one character, whose bytes are the same.
    text = f"{CARD}." if len(CARD) % 2 else CARD
    redaction = Redaction(Redact())
    alike = text.encode().decode("utf-16-le")
    assert hash(alike) == hash(text)
    assert redaction.text(alike) == alike
    assert CARD not in redaction.text(text)


def test_entries_and_windows_are_searched_where_they_are_new(monkeypatch: pytest.MonkeyPatch) -> None:
    texts: list[str] = []
    search = Sensitive.marked
    monkeypatch.setattr(
        Sensitive, "marked", lambda self, text, *rest: texts.append(text) or search(self, text, *rest)
    )
    view, spoken = WindowRedaction(Redaction(Redact())), [f"It is lamp {n}." for n in range(60)]
    stored = Session(entries=tuple(Entry(role="user", turn=n, content=text) for n, text in enumerate(spoken)))
    window = [Message(role="user", content=text) for text in spoken]
    view.view(stored, window)
    assert texts == spoken
    texts.clear()
    view.view(stored, [*window[1:], Message(role="user", content="And a chair.")])
    assert texts == ["And a chair."]


def test_without_redaction_nothing_is_looked_for() -> None:
    assert (NO_REDACTION.marks, NO_REDACTION.text(CARD)) == ({}, CARD)
    assert NO_REDACTION.sensitive.find(CARD) == NO_REDACTION.shaped.find(CARD) == []
    assert NO_REDACTION.entries([session().entries[0]]) == (session().entries[0],)


def test_shaped_are_the_built_in_kinds_alone() -> None:
    redaction = Redaction(Redact(kinds=("card",), patterns={"order": "ORD-[0-9]+"}))
    assert [kind for *_, kind in redaction.sensitive.find(f"{CARD} ORD-17")] == ["card", "order"]
    assert [kind for *_, kind in redaction.shaped.find(f"{CARD} ORD-17")] == ["card"]


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
        ('patterns: {x1: "x[0-9]"}', "the mark '[x1]' matches a pattern itself"),
        ("roles: [user]", "unknown key 'roles'"),
        ('patterns: {a: "("}', "not a valid RE2 pattern"),
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
