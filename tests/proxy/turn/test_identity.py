import json
import re
from pathlib import Path
from urllib.parse import unquote

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.http.request import parse_query
from proxy.turn import identity
from proxy.turn.identity import (
    SESSION_PLACES,
    USER_PLACES,
    Identity,
    IdPlace,
    IdPlaces,
    UserProof,
    as_object,
    header_value,
    identifier,
)
from tests.calls import call_of

DIALECTS = sorted((Path(__file__).parents[2] / "golden" / "dialects").glob("*.json"))
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.sampled_from(["{'a': 'b'}", "{"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["id", "customer", "number", "user", "channel"]) | st.text(), inner)
    ),
    max_leaves=12,
)
top_level = st.sampled_from(
    sorted({place.name for place in (*SESSION_PLACES, *USER_PLACES) if place.source == "body"} | {"metadata"})
)
CONTROL = re.compile(r"[\x00-\x1f\x7f\r\n\u2028\u2029]")
DEFAULT = IdPlaces(SESSION_PLACES, USER_PLACES)


def whose(body=None, headers=None, path="/chat/completions", raw=None, places=DEFAULT):
    return identity.identify(call_of(body, headers, path, raw), places, "acme")


def with_places(session=(), user=(), default_session=None):
    return IdPlaces(tuple(map(IdPlace.parse, session)), tuple(map(IdPlace.parse, user)), default_session)


def user_message(**fields):
    return {"role": "user", "content": "hello", **fields}


@pytest.mark.parametrize("golden", DIALECTS, ids=lambda path: path.stem)
def test_every_dialect_is_known_by_its_own_body(golden):
    request = json.loads(golden.read_text())
    found = whose(request["body"], request["headers"], request["path"])
    assert {"session": found.session, "user": found.user} == request["identity"]
    assert found.tenant == "acme"
    assert not found.background


def nested(place, value):
    for step in reversed(place.steps):
        value = {step: value}
    return value


def call_saying(place, value):
    """The arguments of ``identity`` for a call that names ``value`` at ``place``."""
    if place.source == "header":
        return {"headers": {place.name: value}}
    if place.source == "query":
        return {"path": f"/chat/completions?{place.name}={value}"}
    if place.source == "message":
        return {"body": {"messages": [user_message(**{place.name: nested(place, value)})]}}
    return {"body": {place.name: nested(place, value)}}


@pytest.mark.parametrize("place", SESSION_PLACES, ids=str)
def test_a_session_is_found_at_each_of_its_places(place):
    assert whose(**call_saying(place, "s-1")) == Identity("acme", "s-1", None, background=False)


@pytest.mark.parametrize("place", USER_PLACES, ids=str)
def test_a_user_is_found_at_each_of_its_places(place):
    by_message = place.source == "message"
    expected = Identity("acme", None, "u-1", background=False, user_from_message=by_message)
    assert whose(**call_saying(place, "u-1")) == expected


def everything(places, unusable=0):
    """A call that names an id at every place, the first ``unusable`` of them with a line break in it."""
    headers, query, body, message = {}, {}, {}, {}
    found = {"header": headers, "query": query, "body": body, "message": message}
    for rank, place in enumerate(places):
        *way, last = (place.name, *place.steps)
        inner = found[place.source]
        for step in way:
            inner = inner.setdefault(step, {})
        inner[last] = f"bad\n{rank}" if rank < unusable else f"id-{rank}"
    call = call_of({**body, "messages": [user_message(**message)]}, headers)
    return type(call)(headers=call.headers, query=query, fields=call.fields, messages=call.messages)


@pytest.mark.parametrize("rank", range(len(SESSION_PLACES)), ids=map(str, SESSION_PLACES))
def test_the_first_usable_session_wins(rank):
    assert identity.identify(everything(SESSION_PLACES, rank), DEFAULT, "t").session == f"id-{rank}"


@pytest.mark.parametrize("rank", range(len(USER_PLACES)), ids=map(str, USER_PLACES))
def test_the_first_usable_user_wins(rank):
    assert identity.identify(everything(USER_PLACES, rank), DEFAULT, "t").user == f"id-{rank}"


def test_the_general_names_come_before_every_dialects():
    general = ["header:X-Session-Id", "query:session_id", "query:sessionId", "body:session_id"]
    assert [str(place) for place in SESSION_PLACES[:4]] == general
    assert [str(place) for place in USER_PLACES[-2:]] == ["message:metadata.user", "body:user"]


def on_the_wire(value, coding="utf-8"):
    """A header's value as the server has it before anybody reads it: a character for each byte."""
    return value.encode(coding).decode("latin-1")


@pytest.mark.parametrize("name", ["ann", "José", "李雷", "Łukasz", "Ünal", "Ann 🎈", "नमस्ते"])
def test_an_id_in_a_header_is_the_one_that_the_body_names(name):
    headers = {"X-Session-Id": on_the_wire(name), "X-User-Id": on_the_wire(name)}
    assert whose({}, headers) == whose({"session_id": name, "user_id": name})


def test_an_id_in_latin_1_is_one_too():
    assert whose({}, {"X-User-Id": on_the_wire("José", "latin-1")}).user == "José"


@pytest.mark.parametrize("written", ["José".encode(), "José".encode("latin-1"), b"Jos%C3%A9"])
def test_an_id_in_an_address_is_one_too(written):
    assert parse_query(b"user_id=" + written) == {"user_id": "José"}


def test_an_id_that_is_text_already_stays_as_it_is():
    assert whose({}, {"X-User-Id": "李雷"}).user == "李雷"


@pytest.mark.parametrize("value", ["a\x85b", "\ufffe" * 257, "x" * 257, "a\tb"])
def test_an_id_of_no_use_is_told(value):
    told = whose({"user_id": {}, "user": 1.5}, {"X-User-Id": value, "X-Session-Id": "s"})
    assert (told.session, told.user) == ("s", None)
    assert told.ignored == ("header:X-User-Id", "body:user_id", "body:user")


@pytest.mark.parametrize("nothing", ["", "  ", None])
def test_what_names_nobody_is_no_fault(nothing):
    assert whose({"user_id": nothing}, {"X-User-Id": nothing or ""}).ignored == ()


def test_what_stands_behind_the_id_that_counts_is_not_looked_at():
    assert whose({"user": {}}, {"X-User-Id": "ann"}).ignored == ()


def test_only_the_newest_user_message_names_the_speaker():
    told = user_message(metadata={"user": "ann"})
    answer = {"role": "assistant", "content": "hi", "metadata": {"user": "not a speaker"}}
    assert whose({"messages": [told, answer]}).user == "ann"
    assert whose({"messages": [told, user_message()], "user": "bob"}).user == "bob"
    assert whose({"messages": [told, user_message(metadata=None)]}).user is None


def test_a_call_that_names_nothing_has_no_session():
    assert whose({"messages": [user_message()]}) == Identity("acme", None, None, background=False)


def test_a_default_session_stands_in_only_where_none_is_named():
    places = IdPlaces(SESSION_PLACES, USER_PLACES, default_session="lobby")
    assert whose(places=places).session == "lobby"
    assert whose({"session_id": "s"}, places=places).session == "s"


def test_the_agents_own_uid_is_not_the_callers():
    assert whose(headers={"X-Agora-Customllm-Uid": "2001"}).user is None


CLIENT_CONTROLLED = [
    ("body:elevenlabs_extra_body.user_id", {"elevenlabs_extra_body": {"user_id": "mallory"}}),
    ("body:context.presence.userA.selection", {"context": {"presence": {"userA": {"selection": "mallory"}}}}),
    ("message:name", {"messages": [user_message(name="mallory")]}),
    ("message:speaker", {"messages": [user_message(others={"speaker": "mallory"})]}),
]


@pytest.mark.parametrize(("place", "body"), CLIENT_CONTROLLED)
def test_what_a_client_controls_is_read_only_when_listed(place, body):
    assert whose(body) == Identity("acme", None, None, background=False)
    assert whose(body, places=with_places(user=[place])).user == "mallory"


def test_an_id_is_read_out_of_objects_inside_texts():
    body = {"extendData": """{'userData': '{"person": {"id": 7}}'}"""}
    assert whose(body, places=with_places(user=["body:extendData.userData.person.id"])).user == "7"


@pytest.mark.parametrize(
    "raw",
    [
        *(
            b"null",
            b"true",
            b"1.5",
            b"1e400",
            b"NaN",
            b"[]",
            b'["a"]',
            b"{}",
            b'""',
            b'"\\u0000"',
            b'"a\\r\\nb"',
        ),
        *(b'"\\ud800"', b'"\xff"', b"", b"{", b"9" * 5000, b"[" * 100_000, b'{"a":' * 100_000),
        b'"' + b"x" * 10_000_000 + b'"',
    ],
    ids=lambda raw: repr(raw[:12]),
)
def test_a_bad_id_is_passed_over(raw):
    names = ["session_id", "params", "call", "custom", "extendData", "channel", "metadata"]
    found = whose({"context": {"channel": "room"}}, raw=dict.fromkeys(names, raw))
    assert (found.session, found.user, found.background) == ("room", None, False)


def test_only_what_is_asked_for_is_decoded(monkeypatch):
    decoded = []
    monkeypatch.setattr(identity, "decode_raw", decoded.append)
    whose({"turn_id": 4, "timestamp": 1, "interruptable": True, "model": "m", "messages": [user_message()]})
    assert not [value for value in decoded if isinstance(value, msgspec.Raw)]
    whose({"params": {"a": 1}, "tools": [1]})
    assert [bytes(value) for value in decoded if isinstance(value, msgspec.Raw)] == [b'{"a": 1}']


@pytest.mark.parametrize(
    ("headers", "body", "expected"),
    [
        ({}, {}, False),
        ({"X-Background": "true"}, {}, True),
        ({"X-Background": " YES "}, {}, True),
        ({"X-Background": "1"}, {}, True),
        ({"X-Background": "0"}, {"metadata": {"background": True}}, True),
        ({"X-Background": "false"}, {}, False),
        ({}, {"metadata": {"background": True}}, True),
        ({}, {"metadata": {"background": "True"}}, True),
        ({}, {"metadata": {"background": 1}}, False),
        ({}, {"metadata": {"background": ["true"]}}, False),
        ({}, {"metadata": ["background"]}, False),
        ({}, {"background": True}, True),
        ({}, {"background": 1}, False),
        ({}, {"params": {"background": True}}, True),
        ({}, {"params": {"metadata": {"background": True}}}, True),
        ({}, {"custom": '{"background": true}'}, True),
        ({}, {"extendData": "{'background': True}"}, True),
    ],
)
def test_background_work_says_so(headers, body, expected):
    assert whose(body, headers).background is expected


def test_the_same_id_under_two_tenants_is_two_ids():
    call = call_of({"session_id": "s"})
    assert identity.identify(call, DEFAULT, "acme") != identity.identify(call, DEFAULT, "apex")


@given(
    st.dictionaries(top_level, json_values, max_size=6),
    st.dictionaries(st.sampled_from(["x-user-id"]), st.text()),
)
def test_no_body_makes_it_raise_or_gives_an_id_with_controls(body, headers):
    found = whose({**body, "messages": [user_message(metadata={"user": body.get("user")})]}, headers)
    for found_id in filter(lambda found_id: found_id is not None, (found.session, found.user)):
        assert 0 < len(found_id) <= 256
        assert not CONTROL.search(found_id)
        assert found_id.encode()


@given(st.dictionaries(top_level, st.binary(max_size=40), max_size=4))
def test_no_bytes_make_it_raise(raw):
    whose(raw=raw)


@given(st.text(alphabet=st.characters()))
def test_an_id_in_a_header_is_visible_ascii_and_can_be_read_back(session_id):
    value = header_value(session_id)
    assert re.fullmatch(r"[!-~]*", value)
    assert unquote(value, errors="surrogatepass") == session_id


def test_an_ordinary_id_reads_the_same_in_a_header():
    assert header_value("room:1/a?b=c&d;e,f@g") == "room:1/a?b=c&d;e,f@g"
    assert header_value("50% Zoë") == "50%25%20Zo%C3%AB"


NAMED = user_message(metadata={"user": "bob"})


@pytest.mark.parametrize(
    ("body", "by_message"),
    [
        ({"messages": [NAMED]}, True),
        ({"messages": [NAMED], "user": "bob"}, True),
        ({"messages": [NAMED], "user_id": "bob"}, False),
        ({"messages": [user_message()], "user": "bob"}, False),
        ({"messages": [user_message()]}, False),
    ],
)
def test_it_is_known_whether_a_message_alone_says_who_speaks(body, by_message):
    assert whose(body).user_from_message is by_message


def test_whoever_must_prove_it_is_named_by_no_message_alone():
    places = msgspec.structs.replace(DEFAULT, proof=UserProof("secret"))
    found = whose({"messages": [NAMED]}, places=places)
    assert (found.user, found.user_from_message) == ("bob", False)


@pytest.mark.parametrize("place", [*SESSION_PLACES, *USER_PLACES], ids=str)
def test_a_place_gives_its_spelling_back(place):
    assert IdPlace.parse(str(place)) == place
    assert hash(IdPlace.parse(str(place))) == hash(place)


@pytest.mark.parametrize(
    ("spelling", "advice"),
    [
        ("", "write a place such as header:X-Session-Id"),
        ("X-Session-Id", "write a place"),
        ("heder:X-Session-Id", "write a place"),
        ("cookie:a", "write a place"),
        ("header:", "write a place"),
        ("header:X Session", "write a place"),
        ("header:Authorization", "is a secret"),
        ("header:COOKIE", "is a secret"),
        ("query:", "write a place"),
        ("body:", "write a place"),
        ("body:call..id", "write a place"),
        ("body:call.", "write a place"),
        ("body:.id", "write a place"),
        ("body:call id", "write a place"),
        ("body:messages.0.name", "message:metadata.user"),
        ("message:content", "message:metadata.user"),
    ],
)
def test_what_is_no_place_is_refused_with_advice(spelling, advice):
    with pytest.raises(ValueError, match=advice):
        IdPlace.parse(spelling)


@given(st.text())
def test_parsing_only_ever_raises_value_errors(spelling):
    try:
        place = IdPlace.parse(spelling)
    except ValueError:
        return
    assert IdPlace.parse(str(place)) == place


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("abc", "abc"),
        ("  abc ", "abc"),
        ("Zoë 한국 🙂", "Zoë 한국 🙂"),
        ("x" * 256, "x" * 256),
        ("...", "..."),
        ("a..b", "a..b"),
        (1001, "1001"),
        (0, "0"),
        (-7, "-7"),
        ('it\'s "quoted"; DROP TABLE', 'it\'s "quoted"; DROP TABLE'),
    ],
)
def test_a_text_or_a_whole_number_is_an_id(value, expected):
    assert identifier(value) == expected


@pytest.mark.parametrize(
    "value",
    [
        *("", "   ", "\u00a0\u3000", ".", "..", " .. ", "x" * 257, "x" * 10_000_000),
        *("a\r\nSet-Cookie: b", "a\n", "\ta", "a\x00b", "a\x7f", "a\x85b", "a\u2028b", "\ud800"),
        *(True, False, None, 1.0, float("nan"), [], ["a"], {}, {"id": "a"}, b"a", 10**256, 1 << 40_000),
    ],
    ids=lambda value: repr(value)[:20] if not isinstance(value, int) else f"int{value.bit_length()}",
)
def test_nothing_else_is_an_id(value):
    assert identifier(value) is None


@pytest.mark.parametrize(
    "text",
    [
        "{'a': {'b': 1}}",
        '{"a": {"b": 1}}',
        " \n{'a':{'b':1},} ",
        "{'a': \"{'b': 1}\"}",
        '{"a": "{\\"b\\": 1}"}',
    ],
)
def test_an_object_written_as_text_is_opened_at_every_depth(text):
    assert as_object(as_object(text)["a"])["b"] == 1


@pytest.mark.parametrize(
    "text",
    [
        *("[1]", "1", "'a'", "{1, 2}", "{", "{'a': 1", "{'a': b}", "{[]: 1}", "{{}: 1}", "{**{}}"),
        "{'a': __import__('os').abort()}",
        "{'a': 'b' 'c' % 1}",
        "{'a\x00': 1}",
        "{'a':" * 1600,
        "{'a':" * 10_000,
        '{"a":' * 1600,
        "{'a':" + "-" * 8000 + "1}",
        "{'a':" + "(" * 8000,
        "{'a':x" + ".y" * 4000 + "}",
        "{'a':x" + "()" * 4000 + "}",
        "{'a':" + "9" * 8000 + "}",
        "{'a': '" + "x" * 8192 + "'}",
    ],
    ids=lambda text: text[:12],
)
def test_a_text_that_holds_no_object_opens_to_nothing(text):
    assert not as_object(text)


def test_the_parser_does_not_print_a_callers_words(capfd, recwarn):
    assert as_object(r"{'a': 'secret \d'}") == {"a": r"secret \d"}
    assert not recwarn.list
    assert capfd.readouterr().err == ""


@given(st.text(max_size=60).map(lambda text: "{" + text))
def test_opening_a_text_never_raises(text):
    as_object(text)


@given(st.text(alphabet="{}[]()'\":,.-1ae \\", max_size=60).map(lambda text: "{'a':" + text))
def test_opening_what_looks_like_a_literal_never_raises(text):
    as_object(text)
