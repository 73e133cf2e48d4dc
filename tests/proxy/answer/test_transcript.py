"""The transcript of an answer, read from its bytes."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from proxy.answer.transcript import transcript
from tests.peers.fake_upstream import DONE, ROLE, USAGE, completion, delta, stream_of

CALL = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"town": "Rome"}'}}


@pytest.mark.parametrize("newline", [b"\n", b"\r\n", b"\r"])
def test_a_stream_says_what_its_first_choice_says(newline: bytes) -> None:
    words = delta(content="Hello") + delta(index=1, content="no") + delta(content=" there.")
    told = transcript((ROLE + words + delta(finish="stop") + DONE).replace(b"\n", newline))
    assert (told.text, told.finished, told.has_content) == ("Hello there.", True, True)


@pytest.mark.parametrize("newline", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("more", [delta(content=" More."), delta(tool_calls=[{"index": 0, **CALL}])])
def test_nobody_hears_what_comes_behind_the_end(newline: bytes, more: bytes) -> None:
    told = transcript((stream_of("Hello", " there.") + more + DONE).replace(b"\n", newline))
    assert (told.text, told.tool_calls, told.finished) == ("Hello there.", None, True)


def test_a_whole_answer_says_what_its_message_says() -> None:
    told = transcript(json.dumps(completion("Hello there."), indent=2).encode())
    assert (told.text, told.finished) == ("Hello there.", True)


def test_a_stream_that_broke_off_is_not_finished() -> None:
    told = transcript(ROLE + delta(content="Half a ") + b'data: {"error": {"message": "x"}}\n\n')
    assert (told.text, told.finished) == ("Half a ", False)


@pytest.mark.parametrize(
    "body", [b"", ROLE, ROLE + USAGE + DONE, b"data: x\n\n", b"{", b"[]", delta(content=" ")]
)
def test_what_says_nothing_has_not_reached_anyone(body: bytes) -> None:
    assert not transcript(body).has_content


def test_tool_calls_are_put_together() -> None:
    name = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "weather", "arguments": ""}}
    pieces = [{"index": 0, "function": {"arguments": part}} for part in ('{"town"', ': "Rome"}')]
    second = {"index": 1, "id": "call_2", "type": "function", "function": {"name": "time", "arguments": "{}"}}
    body = b"".join(delta(tool_calls=[piece]) for piece in [name, *pieces, second])
    assert transcript(body).tool_calls == [CALL, {name: second[name] for name in second if name != "index"}]


def test_arguments_that_come_as_an_object_stay_whole() -> None:
    arguments = {"index": 3, "rows": [1], "more": {"index": 4, "arguments": "x"}}
    piece = {"index": 0, "id": "call_1", "function": {"name": "pick", "arguments": arguments}}
    [call] = transcript(delta(tool_calls=[piece])).tool_calls or ()
    assert call["function"]["arguments"] == arguments


def test_a_call_whose_pieces_all_bear_a_name_and_an_id_of_their_own_is_one() -> None:
    """As some servers stream a call that they were told to make."""
    pieces = [
        {"index": 0, "id": f"call_{place}", "type": "function", "function": {"name": "f", "arguments": part}}
        for place, part in enumerate(["", '{"a"', ": ", "1}"])
    ]
    [call] = transcript(b"".join(delta(tool_calls=[piece]) for piece in pieces)).tool_calls or ()
    assert call["function"] == {"name": "f", "arguments": '{"a": 1}'}


def test_what_a_custom_tool_is_given_comes_in_pieces_too() -> None:
    custom = {"id": "call_1", "type": "custom", "custom": {"name": "sql", "input": "select 1"}}
    first = {**custom, "custom": {"name": "sql", "input": ""}}
    pieces = [first, *({"index": 0, "custom": {"input": part}} for part in ("select ", "1"))]
    assert transcript(b"".join(delta(tool_calls=[piece]) for piece in pieces)).tool_calls == [custom]


@pytest.mark.parametrize("none", [None, ""])
def test_pieces_that_have_no_id_and_no_name_take_none_away(none) -> None:
    pieces = [
        {"index": 0, "id": "call_1", "type": "function", "function": {"name": "weather", "arguments": none}},
        {"index": 0, "id": none, "type": none, "function": {"name": none, "arguments": '{"town": "Rome"}'}},
        {"index": 0, "function": none},
    ]
    assert transcript(b"".join(delta(tool_calls=[piece]) for piece in pieces)).tool_calls == [CALL]


def test_an_id_and_a_name_may_come_after_the_first_piece() -> None:
    """And the name again, without the id."""
    pieces = [
        {"index": 0, "id": "", "type": "function", "function": {"name": "", "arguments": ""}},
        {"index": 0, "id": "call_1", "function": {"name": "weather", "arguments": '{"town": '}},
        {"index": 0, "function": {"name": "weather", "arguments": '"Rome"}'}},
    ]
    assert transcript(b"".join(delta(tool_calls=[piece]) for piece in pieces)).tool_calls == [CALL]


def test_a_function_call_comes_in_pieces_too() -> None:
    pieces = [{"name": "weather", "arguments": ""}, {"arguments": '{"town": '}, {"arguments": '"Rome"}'}]
    [call] = transcript(b"".join(delta(function_call=piece) for piece in pieces)).tool_calls or ()
    assert call["function"] == CALL["function"]


def test_a_choice_without_an_index_is_the_first() -> None:
    stream = stream_of("Hello", " there.").replace(b'"index":0,', b"").replace(b'"index": 0, ', b"")
    assert b"index" not in stream
    told = transcript(stream)
    assert (told.text, told.finished) == ("Hello there.", True)


def test_an_answer_that_broke_off_without_a_call_has_none() -> None:
    assert transcript(delta(content="Half a ")).complete_calls is None


def test_a_call_that_broke_off_with_its_answer_is_not_whole() -> None:
    torn = {**CALL, "function": {"name": "weather", "arguments": '{"town'}}
    body = delta(tool_calls=[CALL, {**torn, "id": "call_2"}])
    assert transcript(body).complete_calls == [CALL]
    assert transcript(delta(tool_calls=[torn])).complete_calls is None
    assert transcript(delta(tool_calls=[torn])).has_content
    assert len(transcript(body + delta(finish="tool_calls")).complete_calls or ()) == 2


def test_a_call_whose_index_says_nothing_stands_where_it_is_written() -> None:
    function = {"name": "weather", "arguments": "{}"}
    odd = [{"index": [], "id": "a"}, {"index": None, "id": "b"}, {"index": 2, "id": "c"}]
    body = delta(tool_calls=[{**call, "type": "function", "function": function} for call in odd])
    assert [call["id"] for call in transcript(body).tool_calls or ()] == ["a", "b", "c"]


@pytest.mark.parametrize("number", [{"index": 0}, {}], ids=["one index", "no index"])
def test_calls_that_are_not_numbered_are_told_apart_by_their_names(number) -> None:
    second = {**CALL, "id": "call_2", "function": {"name": "time", "arguments": "{}"}}
    body = b"".join(delta(tool_calls=[{**number, **piece}]) for piece in [CALL, second])
    assert transcript(body).tool_calls == [CALL, second]


def test_sound_says_its_transcript() -> None:
    body = delta(audio={"id": "a", "transcript": "Hello "}) + delta(audio={"id": "a", "transcript": "there."})
    assert transcript(body).text == "Hello there."


@given(body=st.binary(max_size=80))
def test_any_bytes_are_read(body: bytes) -> None:
    assert isinstance(transcript(body + ROLE).text, str)


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_reasoning_is_no_part_of_what_was_said(name: str) -> None:
    told = transcript(ROLE + delta(**{name: "She "}) + delta(**{name: "asks."}) + stream_of("Yes"))
    assert (told.reasoning, told.text) == ("She asks.", "Yes")
    assert not transcript(ROLE + delta(**{name: "She asks."})).has_content
    assert transcript(stream_of("Yes")).reasoning is None


def test_reasoning_of_a_whole_answer_is_read() -> None:
    whole = completion("Yes")
    whole["choices"][0]["message"]["reasoning_content"] = "She asks."
    assert transcript(json.dumps(whole).encode()).reasoning == "She asks."


def test_thoughts_in_parts_are_reasoning() -> None:
    parts = [{"type": "thinking", "thinking": [{"type": "text", "text": "She asks."}]}]
    told = transcript(ROLE + delta(content=parts) + delta(content=[{"type": "text", "text": "Yes"}]))
    assert (told.reasoning, told.text) == ("She asks.", "Yes")


_WORDS = st.none() | st.text(max_size=5)
_CALLS = st.none() | st.just([]) | st.just([{"index": 0, "id": "c", "function": {"name": "f"}}])
_DELTAS = st.none() | st.fixed_dictionaries(
    {},
    optional={
        "role": st.just("assistant"),
        "content": _WORDS | st.just(["odd"]),
        "refusal": _WORDS,
        "audio": st.none() | st.just({"transcript": "aloud"}),
        "reasoning": _WORDS,
        "tool_calls": _CALLS,
    },
)
_CHOICES = st.fixed_dictionaries(
    {"delta": _DELTAS},
    optional={"index": st.none() | st.integers(0, 2), "finish_reason": st.none() | st.just("stop")},
)
_CHUNKS = st.fixed_dictionaries({}, optional={"choices": st.none() | st.lists(_CHOICES, max_size=3)})
_EVENTS = (_CHUNKS | st.integers()).map(lambda chunk: b"data: %b\n\n" % json.dumps(chunk).encode())
_TORN = b'data: {"choices": [{"delta": {"content": "no"}}]\n}\n\n'
_ODD = st.sampled_from(
    [b": hi\n\n", _TORN, b"\n", b"data:1\n\n", b"data: [DONE]\n\n", b"event: x\ndata: {}\n\n", b"data: "]
)


@example([_TORN], b"data: [DONE]\n\n")
@given(st.lists(_EVENTS | _ODD, max_size=6), st.sampled_from([b"", b"data: [DONE]\n\n", b"data: [DONE]"]))
def test_the_short_way_tells_what_the_long_one_does(events, end):
    sent = b"".join(events) + end
    with pytest.MonkeyPatch.context() as patch:
        short = transcript(sent)
        patch.setattr("proxy.answer.transcript._END", b"no end")
        assert transcript(sent) == short
        patch.setattr("proxy.answer.transcript._plain_transcript", lambda _: None)
        assert transcript(sent) == short


WHOLE = json.dumps(
    {
        "id": "c",
        "choices": [
            {
                "index": 0,
                "message": {
                    "role": "assistant",
                    "content": 'Ä "quoted" \\ word,\n{and} 🎈 more.',
                    "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": '{"x": [1, 2]}'}}],
                },
                "finish_reason": "stop",
            }
        ],
    },
    ensure_ascii=False,
).encode()


@pytest.mark.parametrize("body", [WHOLE, json.dumps(json.loads(WHOLE)).encode()], ids=["plain", "escaped"])
def test_a_whole_answer_that_is_cut_anywhere_is_read_as_far_as_it_goes(body: bytes) -> None:
    said = transcript(body)
    assert said.finished
    lengths = []
    for end in range(1, len(body)):
        part = transcript(body[:end])
        assert said.text.startswith(part.text.rstrip("\ud83c"))
        assert not part.finished
        lengths.append(len(part.text))
    assert lengths == sorted(lengths), "more bytes are no fewer words"
    assert lengths[-1] == len(said.text)
    assert transcript(body[: body.index(b"rd,")]).text == 'Ä "quoted" \\ wo', "the text that is cut, too"
    assert transcript(body[:-3]).tool_calls == said.tool_calls


@pytest.mark.parametrize("blank", [b"\n\n", b"\r\n\r\n"])
def test_a_stream_that_is_cut_anywhere_is_read_as_far_as_it_goes(blank: bytes) -> None:
    stream = stream_of('Hello, "my" friend, how are you?').replace(b"\n\n", blank)
    said, before = transcript(stream), ""
    for end in range(1, len(stream)):
        part = transcript(stream[:end])
        assert said.text.startswith(part.text)
        assert part.text.startswith(before), "more bytes are no fewer words"
        before = part.text
    assert before == said.text
    cut = delta(content="Hello, my ") + delta(content="friend").partition(b"end")[0]
    assert transcript(cut.replace(b"\n\n", blank)).text == "Hello, my fri", "the text that is cut, too"


HALVES = ["\\ud83d", "\\ude00 and"]


def test_a_character_that_comes_in_two_halves_is_one() -> None:
    """As servers send it that cut texts by UTF-16."""
    said = [f'data: {{"choices": [{{"delta": {{"content": "{half}"}}}}]}}\n\n' for half in HALVES]
    told = transcript("".join([*said, "data: [DONE]\n\n"]).encode())
    assert told.text == "\N{GRINNING FACE} and"


def test_half_a_character_is_none() -> None:
    body = json.dumps(completion("Fine \ud83d")).encode()
    assert transcript(body).text == "Fine "


def test_the_arguments_of_a_call_have_whole_characters() -> None:
    arguments = ['{"city": "\ud83d', '\ude00 \ud800"}']
    name = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "map", "arguments": ""}}
    pieces = [name, *({"index": 0, "function": {"arguments": part}} for part in arguments)]
    chunks = [json.dumps({"choices": [{"delta": {"tool_calls": [piece]}}]}) for piece in pieces]
    [call] = transcript("".join(f"data: {chunk}\n\n" for chunk in chunks).encode()).tool_calls or ()
    assert call["function"]["arguments"] == '{"city": "\N{GRINNING FACE} "}'
