"""Sessions over HTTP: listed, made, exported, imported and deleted, on real stores."""

import contextlib
import json
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.e2e.conftest import Address
from tests.peers.fake_upstream import FakeUpstream
from tests.peers.redis_server import RedisServer
from tests.proxy_server import ProxyServer, Serve

CONFIG = """
memory: {sessions: "${MEMORY_URL}", window: {max_messages: 6, keep_messages: 4}}
upstreams: {main: {base_url: "${UPSTREAM_BASE_URL}"}}
pipelines:
  default: {upstreams: [main], request: [restore_history]}
"""
KEYED = "keys: 'one:secret-1,two:secret-2,one:secret-3:chat'\n" + CONFIG
ALL = "/v1/memory/sessions"
DOCUMENT = Path(__file__).parents[1] / "golden/dialects/agora_custom.json"
AGORA = json.loads(DOCUMENT.read_text())["body"]["messages"]


@pytest.fixture(params=["sqlite", "memory"])
def url(request: pytest.FixtureRequest, address: Address) -> str:
    return address(request.param)


@pytest.fixture
def proxy(serve: Serve, url: str) -> ProxyServer:
    return serve(CONFIG, MEMORY_URL=url)


def path_of(session: str) -> str:
    return f"{ALL}/{quote(session, safe='')}"


def put(proxy: ProxyServer, session: str, *contents: Any, **call: Any) -> Any:
    return proxy.client.put(path_of(session), json={"contents": list(contents)}, **call)


def contents(proxy: ProxyServer, session: str, **call: Any) -> Any:
    got = proxy.client.get(path_of(session), **call)
    assert got.status_code == 200, got.text
    assert got.json()["summaries"] == []
    return got.json()["contents"]


def user(text: str, turn: int = 0) -> dict[str, Any]:
    return {"role": "user", "content": text, "turn_id": turn}


def key(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


def refused(got: Any, status: int, param: str | None = None) -> dict[str, Any]:
    assert got.status_code == status, got.text
    error: dict[str, Any] = got.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["param"] == param
    return error


def test_agoras_published_document_comes_back_as_it_was_imported(proxy: ProxyServer) -> None:
    assert put(proxy, "s1", *AGORA).json() == {"contents": AGORA, "summaries": []}
    assert contents(proxy, "s1") == AGORA


def test_an_export_can_be_imported_as_it_is(proxy: ProxyServer) -> None:
    put(proxy, "s1", *AGORA)
    exported = proxy.client.get(path_of("s1"))
    headers = {"content-type": "application/json; charset=utf-8"}
    proxy.client.put(path_of("s2"), content=exported.content, headers=headers)
    assert contents(proxy, "s2") == exported.json()["contents"]


def test_what_was_said_over_the_proxy_is_exported(proxy: ProxyServer) -> None:
    proxy.chat([{"role": "system", "content": "Be brief."}, user("Hi", 3)], headers={"X-Session-Id": "s1"})
    proxy.run(proxy.app.memory.recorder.drain())  # type: ignore[union-attr]
    held = contents(proxy, "s1")
    assert [(m["role"], m["content"], m["turn_id"]) for m in held] == [
        ("user", "Hi", 3),
        ("assistant", "Hello there.", 3),
    ]


@pytest.mark.parametrize("unit", [1, 1000])
def test_an_answer_that_no_engine_has_timed_yet_is_shown_with_its_time(proxy: ProxyServer, unit: int) -> None:
    asked = user("Hi", 3) | {"timestamp": int(time.time() * unit)}
    proxy.chat([asked], headers={"X-Session-Id": "s1"})
    proxy.run(proxy.app.memory.recorder.drain())  # type: ignore[union-attr]
    exported = proxy.client.get(path_of("s1")).json()
    question, answer = exported["contents"]
    assert question == asked
    assert type(answer["timestamp"]) is int
    assert abs(answer["timestamp"] - asked["timestamp"]) <= 10 * unit
    proxy.client.put(path_of("s2"), json=exported)
    assert proxy.client.get(path_of("s2")).json() == exported
    timed = {**answer, "timestamp": asked["timestamp"] + 5 * unit}
    proxy.chat([asked, timed, user("And?", 4)], headers={"X-Session-Id": "s2"})
    proxy.run(proxy.app.memory.recorder.drain())  # type: ignore[union-attr]
    held = contents(proxy, "s2")
    assert held[:2] == [asked, timed] and "timestamp" not in held[2]


def test_an_imported_session_is_remembered_in_a_call(proxy: ProxyServer, upstream: FakeUpstream) -> None:
    put(proxy, "s1", user("I am Ann."), {"role": "assistant", "content": "Hello!", "turn_id": 0})
    proxy.chat([user("Who am I?", 1)], headers={"X-Session-Id": "s1"})
    assert [m["content"] for m in upstream.last.json["messages"]] == ["I am Ann.", "Hello!", "Who am I?"]


def test_a_long_import_is_held_whole_and_replaced_whole(proxy: ProxyServer) -> None:
    long = [user(f"Word {i}", i) for i in range(2500)]
    assert put(proxy, "s1", *long).status_code == 200
    assert contents(proxy, "s1") == long
    put(proxy, "s1", user("Only this"))
    assert contents(proxy, "s1") == [user("Only this")]
    put(proxy, "s1", *long[:20])
    assert contents(proxy, "s1") == long[:20]


def test_instructions_and_prompts_are_not_imported(proxy: ProxyServer) -> None:
    silence = {"role": "assistant", "content": "Still there?", "metadata": {"source": "silence"}}
    put(proxy, "s1", {"role": "system", "content": "Be brief."}, user("Hi"), silence)
    assert contents(proxy, "s1") == [user("Hi")]


def test_a_session_is_made_empty_and_once(proxy: ProxyServer) -> None:
    made = proxy.client.post(ALL, json={"id": "s1", "user": "ann"})
    assert made.status_code == 201
    assert made.json() == {"id": "s1", "contents": [], "summaries": []}
    assert contents(proxy, "s1") == []
    refused(proxy.client.post(ALL, json={"id": "s1"}), 409, "id")


def test_a_session_is_made_of_what_is_given(proxy: ProxyServer) -> None:
    put(proxy, "s1", *AGORA)
    whole = proxy.client.get(path_of("s1")).json()
    plain = {"contents": AGORA, "summaries": [{"text": "They met.", "messages": 2}]}
    made = proxy.client.post(ALL, json={"id": "s2", "user": "ann", **plain})
    assert made.status_code == 201, made.text
    held = proxy.client.get(path_of("s2")).json()
    assert made.json() == {"id": "s2", "contents": AGORA, "summaries": held["summaries"]}
    assert (held["contents"], held["summaries"][0]["text"]) == (AGORA, "They met.")
    assert held["turnkeeper"]["user"] == "ann"
    assert proxy.client.post(ALL, json={"id": "s3", **whole}).status_code == 201
    assert proxy.client.get(path_of("s3")).json() == whole
    refused(proxy.client.post(ALL, json={"id": "s3", **plain}), 409, "id")
    assert proxy.client.get(path_of("s3")).json() == whole


WAYS = {
    "put": lambda proxy, name, body: proxy.client.put(path_of(name), json=body),
    "post": lambda proxy, name, body: proxy.client.post(ALL, json={**body, "id": name}),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_body_means_the_same_whichever_way_it_comes(proxy: ProxyServer, way: str) -> None:
    summary = [{"text": "They met.", "messages": 2}]
    body = {"user": "ann", "contents": AGORA, "summaries": summary, "state": {"plan": "gold"}}
    assert WAYS[way](proxy, "s1", body).status_code < 300
    held = proxy.client.get(path_of("s1")).json()
    assert (held["contents"], held["summaries"][0]["text"]) == (AGORA, "They met.")
    assert (held["turnkeeper"]["user"], held["turnkeeper"]["state"]) == ("ann", {"plan": "gold"})
    assert proxy.client.get(f"{path_of('s1')}/state").json() == {"plan": "gold"}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("key", "value", "status"),
    [
        ("user", "", 400),
        ("user", {}, 400),
        ("state", [], 400),
        ("state", {"n": 10**30}, 400),
        ("state", {"a": "x" * 9000}, 413),
        ("summaries", "none", 400),
        ("turnkeeper", {"entries": [{}]}, 400),
        ("turnkeeper", [], 400),
    ],
)
def test_a_body_is_refused_whichever_way_it_comes(
    proxy: ProxyServer, way: str, key: str, value: Any, status: int
) -> None:
    put(proxy, "kept", user("Hi"))
    name = "kept" if way == "put" else "new"
    told = refused(WAYS[way](proxy, name, {"contents": [], key: value}), status, key)
    assert f"'{key}'" in told["message"]
    assert contents(proxy, "kept") == [user("Hi")]
    assert len(proxy.client.get(ALL).json()["data"]) == 1


def test_a_history_as_agora_sends_it_is_taken_as_it_stands(proxy: ProxyServer) -> None:
    payload = {"agent_id": "a1", "start_ts": 1, "stop_ts": 2, "labels": {}, "contents": AGORA}
    assert proxy.client.put(path_of("s1"), json=payload).status_code == 200
    assert contents(proxy, "s1") == AGORA
    told = refused(proxy.client.post(ALL, json={**payload, "id": "s2"}), 400, "agent_id")
    assert "available: id, user, contents" in told["message"]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("empty", [{}, {"content": None}, {"content": " "}, {"content": []}])
def test_a_message_without_words_is_left_out_and_the_answer_says_so(
    proxy: ProxyServer, way: str, empty: dict[str, Any]
) -> None:
    body = {"contents": [user("Hi"), {"role": "assistant", **empty}, {"role": "user", **empty}]}
    got = WAYS[way](proxy, "s1", body)
    assert got.status_code < 300 and got.json()["contents"] == contents(proxy, "s1")
    assert [message["content"] for message in contents(proxy, "s1")] == ["Hi"]


@pytest.mark.parametrize("way", WAYS)
def test_a_key_that_is_null_is_left_out(proxy: ProxyServer, way: str) -> None:
    nothing = dict.fromkeys(("user", "summaries", "state", "turnkeeper"))
    assert WAYS[way](proxy, "s1", {**nothing, "contents": AGORA}).status_code < 300
    assert contents(proxy, "s1") == AGORA


@pytest.mark.parametrize("way", WAYS)
def test_what_is_exported_with_a_person_is_carried_in_with_person_and_state(
    proxy: ProxyServer, way: str
) -> None:
    body = {"user": "ann", "contents": [user("Hi")], "state": {"plan": "gold"}}
    proxy.client.put(path_of("s1"), json=body).raise_for_status()
    export = "/v1/memory/users/ann/export"
    (told,) = proxy.client.get(export).json()["sessions"]
    assert proxy.client.delete("/v1/memory/users/ann").status_code == 204
    assert proxy.client.get(export).json()["sessions"] == []
    assert WAYS[way](proxy, "s2", told).status_code < 300
    assert proxy.client.get(export).json()["sessions"] == [{**told, "id": "s2"}]
    assert proxy.client.delete("/v1/memory/users/ann").status_code == 204
    refused(proxy.client.get(path_of("s2")), 404, "id")


def test_a_long_session_can_be_made(proxy: ProxyServer, upstream: FakeUpstream) -> None:
    long = [user(f"Word {i}", i) for i in range(200)]
    assert proxy.client.post(ALL, json={"id": "s1", "contents": long}).status_code == 201
    assert contents(proxy, "s1") == long
    proxy.chat([user("And?", 200)], headers={"X-Session-Id": "s1"})
    assert upstream.last.json["messages"][-2]["content"] == "Word 199"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"session_id": "s1"}, "session_id"),
        ({"contents": None, "content": []}, "content"),
        ({"contents": "Hi"}, "contents"),
        ({"contents": [{"role": "user", "content": 1}]}, "contents[0].content"),
        ({"summaries": [{"text": "They met.", "messages": 1}]}, "summaries"),
        ({"turnkeeper": {"entries": [{}]}}, "turnkeeper"),
    ],
)
def test_a_session_that_cannot_be_made_as_told_is_not_made(proxy: ProxyServer, body: Any, param: str) -> None:
    assert f"'{param}'" in refused(proxy.client.post(ALL, json=body), 400, param)["message"]
    assert proxy.client.get(ALL).json()["data"] == []


@pytest.mark.parametrize("name", [".", "..", " . "])
def test_what_a_client_takes_for_a_step_on_its_path_is_no_id(proxy: ProxyServer, name: str) -> None:
    refused(proxy.client.post(ALL, json={"id": name}), 400, "id")
    refused(proxy.client.post(ALL, json={"id": "s1", "user": name}), 400, "user")
    proxy.chat([user("Hi")], session_id=name)
    proxy.run(proxy.app.memory.recorder.drain())  # type: ignore[union-attr]
    assert proxy.client.get(ALL).json()["data"] == []
    for steps in ("%2E", "%2E%2E", "%2e%2e"):
        refused(proxy.client.put(f"{ALL}/{steps}", json={"contents": []}), 400, "id")
    assert proxy.client.post(ALL, json={"id": "..."}).status_code == 201


def test_a_session_without_an_id_is_given_one(proxy: ProxyServer) -> None:
    headers = {"content-type": "application/json"}
    names = {proxy.client.post(ALL, content=body, headers=headers).json()["id"] for body in (b"{}", b"")}
    assert len(names) == 2
    assert {line["id"] for line in proxy.client.get(ALL).json()["data"]} == names


def test_a_deleted_session_is_gone(proxy: ProxyServer) -> None:
    put(proxy, "s1", user("Hi"))
    gone = proxy.client.delete(path_of("s1"))
    assert (gone.status_code, gone.content) == (204, b"")
    refused(proxy.client.get(path_of("s1")), 404, "id")
    refused(proxy.client.delete(path_of("s1")), 404, "id")
    assert proxy.client.get(ALL).json()["data"] == []


def test_sessions_are_listed_in_pages(proxy: ProxyServer) -> None:
    names = sorted(f"s{i}" for i in range(120))
    for name in names:
        proxy.client.post(ALL, json={"id": name})
    found: list[str] = []
    pages = [50, 50, 20]
    for size in pages:
        page = proxy.client.get(ALL, params={"after": found[-1]} if found else {}).json()
        assert len(page["data"]) == size
        assert page["last_id"] == page["data"][-1]["id"]
        assert page["data"][0]["updated"] > 1e9
        found += [line["id"] for line in page["data"]]
        assert page["has_more"] == (len(found) < 120)
    assert found == names
    whole = proxy.client.get(ALL, params={"limit": 100, "after": names[19]}).json()
    assert [line["id"] for line in whole["data"]] == names[20:]
    assert not whole["has_more"]


def test_an_empty_list_is_a_list(proxy: ProxyServer) -> None:
    assert proxy.client.get(ALL).json() == {"object": "list", "data": [], "has_more": False, "last_id": None}


def test_no_page_is_longer_than_the_longest(proxy: ProxyServer) -> None:
    for i in range(101):
        proxy.client.post(ALL, json={"id": f"s{i}"})
    for limit in ["101", "1000", "0000000000101", "9" * 5000]:
        page = proxy.client.get(ALL, params={"limit": limit}).json()
        assert (len(page["data"]), page["has_more"]) == (100, True), limit
    assert len(proxy.client.get(ALL, params={"limit": "007"}).json()["data"]) == 7


@pytest.mark.parametrize("limit", ["0", "000", "-1", "x", "", "1.5", "²"])
def test_a_limit_that_is_none_is_refused(proxy: ProxyServer, limit: str) -> None:
    refused(proxy.client.get(ALL, params={"limit": limit}), 400, "limit")


HOSTILE = ["a/b", "../../etc", "%2F", "a?b#c", "कमरा", "' OR 1=1 --", "{id}", "*", "a%00b", "😀" * 256]


@pytest.mark.parametrize("name", HOSTILE)
def test_any_text_is_an_id_and_is_decoded_once(proxy: ProxyServer, name: str) -> None:
    assert put(proxy, name, user("Hi")).status_code == 200
    assert contents(proxy, name) == [user("Hi")]
    assert [line["id"] for line in proxy.client.get(ALL).json()["data"]] == [name]
    assert proxy.client.delete(path_of(name)).status_code == 204


@pytest.mark.parametrize("step", ["a%00b", "a%0Ab", "%ff", "x" * 257, "%20", "%ED%A0%80"])
def test_what_is_no_id_is_refused_everywhere(proxy: ProxyServer, step: str) -> None:
    for method in ("GET", "PUT", "DELETE"):
        body: Any = {"contents": []} if method == "PUT" else None
        refused(proxy.client.request(method, f"{ALL}/{step}", json=body), 400, "id")


@pytest.mark.parametrize("field", ["id", "user"])
@pytest.mark.parametrize("value", ["", "a\nb", "x" * 257, True, 1.5, {}, []])
def test_a_made_session_has_proper_names(proxy: ProxyServer, field: str, value: Any) -> None:
    refused(proxy.client.post(ALL, json={field: value}), 400, field)


def test_slashes_are_steps_of_the_path_unless_they_are_encoded(proxy: ProxyServer) -> None:
    put(proxy, "a/b", user("Hi"))
    for path in (f"{ALL}/a/b", f"{ALL}/", "/v1/memory/", "/v1/memory/other", "/v1/%6Demory/sessions"):
        refused(proxy.client.get(path), 404)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "contents"),
        ({"contents": None}, "contents"),
        ({"contents": "Hi"}, "contents"),
        ({"contents": ["Hi"]}, "contents[0]"),
        ({"contents": [{"content": "Hi"}]}, "contents[0].role"),
        ({"contents": [{"role": "user", "content": 1}]}, "contents[0].content"),
        ({"contents": [user("Hi"), {"role": "tool", "tool_call_id": 1}]}, "contents[1].tool_call_id"),
        ({"contents": [], "summaries": [{"text": "They met."}]}, "summaries"),
        ([], None),
    ],
)
def test_an_import_that_is_wrong_names_the_field_and_changes_nothing(
    proxy: ProxyServer, body: Any, param: str | None
) -> None:
    put(proxy, "s1", user("Hi"))
    refused(proxy.client.put(path_of("s1"), json=body), 400, param)
    assert contents(proxy, "s1") == [user("Hi")]


def test_a_mark_that_is_no_time_costs_no_session(proxy: ProxyServer) -> None:
    marks = {"interrupted": True, "interrupt_timestamp": "noon", "original": "Hello there."}
    put(proxy, "s1", {"role": "assistant", "content": "Hello", "metadata": marks})
    assert contents(proxy, "s1")[0]["metadata"] == {"interrupted": True, "original": "Hello there."}


@pytest.mark.parametrize(
    "headers", [{}, {"content-type": "text/plain"}, {"content-type": "application/x-www-form-urlencoded"}]
)
def test_a_body_is_json_whatever_it_is_said_to_be(proxy: ProxyServer, headers: dict[str, str]) -> None:
    def ask(method: str, path: str, body: bytes = b"") -> Any:
        return proxy.client.request(method, path, content=body, headers=headers)

    assert ask("POST", ALL, b'{"id": "s1"}').status_code == 201
    assert ask("PUT", path_of("s1"), json.dumps({"contents": [user("Hi")]}).encode()).status_code == 200
    assert contents(proxy, "s1") == [user("Hi")]
    for body in (b"a=b", b"{", b'"x"', b"\xff"):
        refused(ask("POST", ALL, body), 400)
        refused(ask("PUT", path_of("s1"), body), 400)
    assert contents(proxy, "s1") == [user("Hi")]
    assert ask("DELETE", path_of("s1")).status_code == 204
    assert ask("POST", ALL).status_code == 201


FOREIGN: list[dict[str, str]] = [
    {"sec-fetch-site": "cross-site"},
    {"origin": "https://evil.example"},
    {"origin": "http://localhost.evil.example:8080"},
    {"origin": "null"},
]


@pytest.mark.parametrize("headers", FOREIGN)
def test_a_page_of_another_site_can_write_no_memory(proxy: ProxyServer, headers: dict[str, str]) -> None:
    put(proxy, "s1", user("Hi"))
    form = {**headers, "content-type": "text/plain"}
    body = b'{"contents": [{"role": "user", "content": "Ho"}], "text": "x", "user": "ann", "query": "x"}'
    for method, path in (
        ("POST", ALL),
        ("PUT", path_of("s1")),
        ("DELETE", path_of("s1")),
        ("POST", f"{path_of('s1')}/summaries"),
        ("PATCH", f"{path_of('s1')}/state"),
        ("POST", "/v1/memory/users/ann/facts"),
        ("DELETE", "/v1/memory/users/ann"),
        ("POST", "/v1/memory/agents/nova/episodes"),
        ("POST", "/v1/memory/search"),
    ):
        got = proxy.client.request(method, path, content=body, headers=form)
        assert refused(got, 403)["code"] == "site_not_allowed"
    assert contents(proxy, "s1") == [user("Hi")]
    assert len(proxy.client.get(ALL).json()["data"]) == 1


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://localhost:3000"},
        {"origin": "http://127.0.0.1:8080"},
        {"origin": "null", "sec-fetch-site": "same-origin"},
    ],
)
def test_a_page_of_this_machine_may(proxy: ProxyServer, headers: dict[str, str]) -> None:
    assert put(proxy, "s1", user("Hi"), headers=headers).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("PUT", ALL, "GET, POST"),
        ("DELETE", ALL, "GET, POST"),
        ("POST", f"{ALL}/s1", "GET, PUT, DELETE"),
        ("PATCH", f"{ALL}/s1", "GET, PUT, DELETE"),
    ],
)
def test_other_methods_are_named(proxy: ProxyServer, method: str, path: str, allow: str) -> None:
    got = proxy.client.request(method, path, json={})
    refused(got, 405)
    assert got.headers["allow"] == allow


def test_head_is_no_method_here(proxy: ProxyServer) -> None:
    assert proxy.client.head(ALL).status_code == proxy.client.head(path_of("s1")).status_code == 405


def test_tenants_never_meet(serve: Serve, url: str) -> None:
    proxy = serve(KEYED, MEMORY_URL=url)
    one, two = {"headers": key("secret-1")}, {"headers": key("secret-2")}
    put(proxy, "s1", user("I am Ann."), **one)
    refused(proxy.client.get(path_of("s1"), **two), 404, "id")  # type: ignore[arg-type]
    refused(proxy.client.delete(path_of("s1"), **two), 404, "id")  # type: ignore[arg-type]
    assert proxy.client.get(ALL, **two).json()["data"] == []  # type: ignore[arg-type]
    put(proxy, "s1", user("I am Bob."), **two)
    assert contents(proxy, "s1", **one) == [user("I am Ann.")]
    assert contents(proxy, "s1", **two) == [user("I am Bob.")]


@pytest.mark.parametrize("path", [ALL, f"{ALL}/s1", "/v1/%6Demory/sessions", "/v1/models%2F..%2Fmemory"])
def test_a_key_that_may_chat_sees_no_memory(serve: Serve, url: str, path: str) -> None:
    proxy = serve(KEYED, MEMORY_URL=url)
    for method in ("GET", "POST", "PUT", "DELETE"):
        got = proxy.client.request(method, path, json={}, headers=key("secret-3"))
        assert got.status_code in ({404, 405} if "models" in path else {403})


def test_without_a_key_there_is_no_memory(serve: Serve, url: str) -> None:
    refused(serve(KEYED, MEMORY_URL=url).client.get(ALL), 401)


def test_without_memory_the_answer_says_what_to_set(serve: Serve) -> None:
    proxy = serve(CONFIG.replace('memory: {sessions: "${MEMORY_URL}"', "listen: {port: 1}\n#"))
    for path in (ALL, f"{ALL}/s1"):
        assert "'memory:'" in refused(proxy.client.get(path), 404)["message"]


def test_a_dead_store_is_said_to_be_dead(serve: Serve, tmp_path: Path) -> None:
    with contextlib.closing(RedisServer(tmp_path)) as server:
        proxy = serve(CONFIG, MEMORY_URL=server.url)
        put(proxy, "s1", user("Hi"))
        server.kill()
        answers = [
            proxy.client.get(ALL),
            proxy.client.get(path_of("s1")),
            proxy.client.post(ALL, json={}),
            put(proxy, "s1", user("Hi")),
            proxy.client.delete(path_of("s1")),
        ]
    for got in answers:
        assert refused(got, 503)["code"] == "memory_unavailable"
