"""Every page over plain HTTP: its content, its access control, and its escaping."""

import json
import re
import subprocess
import sys
import time
from html import unescape
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest

from proxy.memory.archive.records import Fact
from proxy.memory.session import Segment, decode, encode
from proxy.memory.stores.store import BlobWrite, Key, Owner
from proxy.page.playground import TITLES, example
from proxy.settings.build import build_runtime
from proxy.settings.load import load
from tests.memory.mem0_library import installed
from tests.page.conftest import KEYED, KEYS
from tests.page_visit import TOKEN, Markup, Visit, newest, settle, words
from tests.peers.fake_upstream import CLOSE, DONE, END, HEAD, ROLE, FakeUpstream, answer, chunk, delta, event
from tests.proxy_server import CONFIG, ProxyServer, Serve
from tests.waiting import until

GOLDEN = Path(__file__).parents[1] / "golden"
JOKE = json.loads((GOLDEN / "agora_doc_request.json").read_text())["messages"]
PAGES = ["/", "/live", "/conversations", "/playground", "/users", "/health"]
HOSTILE = (
    "<script>alert(1)</script><img src=x onerror=alert(2)>\"'{{1234*4321}}{% raw %}</textarea></title>"
    "\u202e&amp;"
)


def talk(proxy: ProxyServer, **call: Any) -> str:
    """One turn; its id."""
    before = newest_id(proxy)
    got = proxy.chat(call.pop("messages", JOKE), **{"channel": "room-1", "stream": True, **call})
    assert got.status_code == 200, got.text
    assert until(lambda: newest_id(proxy) != before)
    settle(proxy)
    return newest(proxy)


def newest_id(proxy: ProxyServer) -> str:
    return next((trace.report.id for trace in proxy.app.traces.newest("default")), "")


# --- what every page has


@pytest.mark.parametrize("path", PAGES)
def test_a_page_is_there_and_lets_nothing_in(visit: Visit, path: str):
    got = visit.get(path)
    assert got.status_code == 200
    assert got.headers["content-type"] == "text/html; charset=utf-8"
    policy = got.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy and "*" not in policy
    assert got.headers["x-content-type-options"] == "nosniff"
    assert got.headers["referrer-policy"] == "no-referrer"
    assert got.headers["cache-control"] == "no-store"


@pytest.mark.parametrize("path", [*PAGES, "/conversations/room-1", "/conversations/room-1/delete"])
def test_a_page_has_no_inline_script_or_style(open_proxy: ProxyServer, visit: Visit, path: str):
    talk(open_proxy)
    page = Markup(visit.page(path))
    assert all(each.get("src", "").startswith("/assets/") for each in page.of("script"))
    assert not page.of("style")
    for tag, attributes in page.elements:
        assert not [name for name in attributes if name.startswith("on") or name == "style"], tag


def test_assets_are_cached_under_an_address_that_changes_with_them(visit: Visit):
    page = Markup(visit.page("/"))
    addresses = [each["href"] for each in page.of("link")] + [each["src"] for each in page.of("script")]
    assert len(addresses) == 3
    for address in addresses:
        got = visit.get(address)
        assert got.status_code == 200 and "immutable" in got.headers["cache-control"]
        assert re.search(r"\?v=[0-9a-f]{12}$", address)
    assert visit.get("/assets/base.html").status_code == 404
    assert visit.get("/assets/..%2Fhouse.py").status_code == 404


def test_what_is_not_there_is_a_page_too(visit: Visit):
    for path in ("/turns/none", "/conversations/nobody", "/conversations/%ff", "/live/none"):
        got = visit.get(path)
        assert (got.status_code, got.headers["content-type"]) == (404, "text/html; charset=utf-8"), path
    assert visit.client.delete("/").status_code == 405


def test_other_paths_stay_what_they_were(visit: Visit):
    assert visit.get("/healthz").json() == {"status": "alive"}
    assert visit.get("/nowhere").json()["error"]["code"] == "not_found"


def test_a_foreign_host_sees_nothing_without_keys(visit: Visit):
    got = visit.get("/", headers={"host": "evil.example"})
    assert got.status_code == 403
    assert "TURNKEEPER_KEYS" in got.text


# --- who may come in


@pytest.mark.parametrize("path", [*PAGES, "/turns/x", "/conversations/x", "/live/events"])
def test_with_keys_a_stranger_is_sent_to_the_login(keyed_proxy: ProxyServer, path: str):
    got = Visit(keyed_proxy).get(path)
    assert (got.status_code, got.headers["location"]) == (303, "/login")
    assert not got.content


def signed_in(proxy: ProxyServer, key: str = "secret-1") -> Visit:
    visit = Visit(proxy)
    got = visit.post("/login", seen="/login", key=key)
    assert got.status_code == 303, got.text
    return visit


def test_a_key_opens_and_the_cookie_tells_nothing_of_it(keyed_proxy: ProxyServer):
    visit = Visit(keyed_proxy)
    got = visit.post("/login", seen="/login", key="secret-1")
    cookie = got.headers["set-cookie"]
    assert "HttpOnly" in cookie and "samesite=strict" in cookie.lower() and "secret-1" not in cookie
    assert "Secure" not in cookie
    assert visit.get("/").status_code == 200


def test_behind_https_the_cookie_is_for_https_alone(keyed_proxy: ProxyServer):
    visit = Visit(keyed_proxy)
    token = visit.token("/login")
    form = {"token": token, "key": "secret-1"}
    got = visit.client.post("/login", data=form, headers={"x-forwarded-proto": "https"})
    assert "Secure" in got.headers["set-cookie"]


def test_a_link_from_elsewhere_signs_nobody_out(keyed_proxy: ProxyServer):
    """A browser shows no SameSite=Strict cookie then, and would take another in its place."""
    visit = signed_in(keyed_proxy)
    got = httpx2.get(f"{keyed_proxy.root}/", headers={"sec-fetch-site": "cross-site"})
    assert got.status_code == 303
    visit.client.cookies.update(got.cookies)
    assert visit.get("/").status_code == 200


def test_cookies_of_other_applications_do_no_harm(keyed_proxy: ProxyServer):
    cookie = signed_in(keyed_proxy).client.cookies["turnkeeper"]
    odd = f'a=b; {{"x": 1}}; =; turnkeeper={cookie}; z="'
    assert httpx2.get(f"{keyed_proxy.root}/", headers={"cookie": odd}).status_code == 200


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@pytest.mark.parametrize("path", PAGES)
def test_a_key_in_the_header_opens_as_elsewhere_and_leaves_no_cookie(keyed_proxy: ProxyServer, path: str):
    for headers in (bearer("secret-1"), {"api-key": "secret-1"}):
        got = httpx2.get(f"{keyed_proxy.root}{path}", headers=headers)
        assert (got.status_code, got.headers["content-type"]) == (200, "text/html; charset=utf-8")
        assert "set-cookie" not in got.headers
    assert httpx2.get(f"{keyed_proxy.root}{path}").status_code == 303


def test_a_key_in_the_header_shows_its_own_tenants_turns(keyed_proxy: ProxyServer):
    keyed_proxy.chat(JOKE, channel="room-1", headers=bearer("secret-1"))
    settle(keyed_proxy)
    one = httpx2.get(f"{keyed_proxy.root}/conversations", headers=bearer("secret-1")).text
    two = httpx2.get(f"{keyed_proxy.root}/conversations", headers=bearer("secret-2")).text
    assert "room-1" in one and "room-1" not in two
    theirs = signed_in(keyed_proxy)
    assert "room-1" not in theirs.client.get("/conversations", headers=bearer("secret-2")).text


def test_a_form_bears_its_token_whatever_says_whose_it_is(keyed_proxy: ProxyServer):
    keyed_proxy.chat(JOKE, channel="room-1", headers=bearer("secret-1"))
    settle(keyed_proxy)
    page = f"{keyed_proxy.root}/conversations/room-1/delete"
    found = TOKEN.search(httpx2.get(page, headers=bearer("secret-1")).text)
    assert found
    for data, headers, status in (
        ({}, bearer("secret-1"), 403),
        ({"token": found[1]}, bearer("secret-2"), 403),
        ({"token": found[1]}, {**bearer("secret-1"), "sec-fetch-site": "cross-site"}, 403),
        ({"token": found[1]}, bearer("secret-1"), 303),
    ):
        assert httpx2.post(page, data=data, headers=headers).status_code == status


@pytest.mark.parametrize("headers", [bearer("secret-9"), bearer("secret-3"), {"api-key": "x"}])
def test_a_header_with_no_such_key_is_sent_to_the_login(keyed_proxy: ProxyServer, headers: dict[str, str]):
    got = httpx2.get(f"{keyed_proxy.root}/", headers=headers)
    assert (got.status_code, got.headers["location"]) == (303, "/login")


def test_a_wrong_key_and_one_that_may_only_chat_do_not_open(keyed_proxy: ProxyServer):
    visit = Visit(keyed_proxy)
    wrong = visit.post("/login", seen="/login", key="secret-9")
    assert wrong.status_code == 401 and "Unknown key" in wrong.text and "secret-9" not in wrong.text
    chat = visit.post("/login", seen="/login", key="secret-3")
    assert chat.status_code == 403
    assert visit.get("/").status_code == 303


def test_signing_out_ends_it(keyed_proxy: ProxyServer):
    visit = signed_in(keyed_proxy)
    assert visit.post("/logout", seen="/").status_code == 303
    assert visit.get("/").status_code == 303


@pytest.mark.parametrize("change", ["", "x", "expired", "other key"])
def test_a_cookie_that_was_tampered_with_opens_nothing(keyed_proxy: ProxyServer, change: str):
    visit = signed_in(keyed_proxy)
    name, expiry, nonce, mac = visit.client.cookies["turnkeeper"].split(".")
    changed = {
        "": "",
        "x": ".".join([name, expiry, nonce, mac[::-1]]),
        "expired": f"{name}.1.{nonce}.{mac}",
        "other key": ".".join(["0" * 16, expiry, nonce, mac]),
    }[change]
    got = httpx2.get(f"{keyed_proxy.root}/", headers={"cookie": f"turnkeeper={changed}"})
    assert got.status_code == 303


def test_a_cookie_ends_with_its_key(serve: Serve, keyed_proxy: ProxyServer):
    cookie = signed_in(keyed_proxy).client.cookies["turnkeeper"]
    others = serve(KEYED, TURNKEEPER_KEYS="one:another-secret")
    assert httpx2.get(f"{others.root}/", headers={"cookie": f"turnkeeper={cookie}"}).status_code == 303
    same = serve(KEYED, TURNKEEPER_KEYS=KEYS)
    assert httpx2.get(f"{same.root}/", headers={"cookie": f"turnkeeper={cookie}"}).status_code == 200


def test_nobody_sees_another_tenants_turns_or_conversations(keyed_proxy: ProxyServer):
    keyed_proxy.chat(JOKE, channel="room-1", headers={"authorization": "Bearer secret-1"})
    settle(keyed_proxy)
    turn = newest(keyed_proxy, "one")
    one, two = signed_in(keyed_proxy), signed_in(keyed_proxy, "secret-2")
    assert one.get(f"/turns/{turn}").status_code == 200
    assert two.get(f"/turns/{turn}").status_code == 404
    assert two.get("/conversations/room-1").status_code == 404
    for path in PAGES:
        assert "room-1" not in two.page(path)
    assert two.post("/conversations/room-1/delete", seen="/", token="").status_code == 403
    assert one.get("/conversations/room-1").status_code == 200


def links_to_turns(page: str) -> list[str]:
    return [each["href"] or "" for each in Markup(page).of("a") if (each["href"] or "").startswith("/turns/")]


@pytest.mark.parametrize("expired", [False, True])
def test_a_link_to_a_turn_survives_a_restart_where_its_words_are_stored(
    serve: Serve, tmp_path: Path, expired: bool
):
    config = KEYED.replace('"memory:"', f'"sqlite:{tmp_path / "memory.db"}"')
    first = serve(config)
    talk(first, channel="room 1/ü")
    archived(first, "Can you tell me a joke?", user="user123")
    (link,) = links_to_turns(Visit(first).page("/"))
    if expired:  # and the archive alone has it
        first.client.delete("/v1/memory/sessions/room%201%2F%C3%BC", params={"archive": "keep"})
    first.__exit__(None, None, None)
    visit = Visit(serve(config))
    got = visit.get(link)
    assert got.status_code == 303
    found = visit.get(got.headers["location"])
    assert found.status_code == 303
    path, _, line = found.headers["location"].partition("#")
    page = visit.page(path)
    words_there = words(page.partition(f'id="{line}"')[2].partition("</li>")[0])
    assert "Tell me a story instead." in words_there
    for odd in ("x", "-1", "1e309", "99999999999999"):
        assert visit.get(f"/conversations/room%201%2F%C3%BC?at={odd}").status_code == 404


def test_what_changes_anything_wants_the_pages_own_token(open_proxy: ProxyServer, visit: Visit):
    talk(open_proxy)
    for path in ("/conversations/room-1/delete", "/conversations/room-1/edit/0", "/playground", "/logout"):
        assert visit.post(path).status_code == 403
        assert visit.post(path, token="0" * 64).status_code == 403
    stolen = visit.token("/playground")
    assert Visit(open_proxy).post("/conversations/room-1/delete", token=stolen).status_code == 403
    fields = {"token": stolen}
    foreign = {"sec-fetch-site": "cross-site"}
    got = visit.client.post("/conversations/room-1/delete", data=fields, headers=foreign)
    assert got.status_code == 403
    assert visit.get("/conversations/room-1").status_code == 200


# --- what pages show


def test_live_shows_the_newest_turns_first(open_proxy: ProxyServer, visit: Visit):
    assert "No turns yet" in visit.page("/")
    talk(open_proxy)
    talk(open_proxy, channel="room-2")
    page = visit.page("/")
    assert page.index("room-2") < page.index("room-1")
    assert 'id="empty" hidden' in page


def test_live_shows_the_callers_words_and_what_was_answered(open_proxy: ProxyServer, visit: Visit):
    talk(open_proxy, user_id="user123")
    row = words(visit.page("/").partition("<tbody>")[2])
    assert "You know what? Tell me a story instead." in row or "joke" in row
    assert "Hello there." in row and "default" in row and "5 5 out" not in row


@pytest.mark.parametrize("setting", ["content: false", "content: true, keep: 0"])
def test_live_shows_no_words_where_none_are_kept(serve: Serve, setting: str):
    proxy = serve(
        KEYED.replace("keep: 50, content: true", setting if "keep" in setting else f"keep: 50, {setting}")
    )
    proxy.chat(JOKE, channel="room-1", stream=True, user_id="user123")
    assert until(lambda: any(proxy.app.traces.feed.newest("default")))
    page = Visit(proxy).page("/")
    assert "room-1" in page and "Hello there." not in page and "joke" not in page


def test_live_shows_the_words_of_as_many_turns_as_are_kept(serve: Serve):
    proxy = serve(KEYED.replace("keep: 50", "keep: 2"))
    for number in range(4):
        proxy.chat([{"role": "user", "content": f"words-{number}"}], session_id="s")
    settle(proxy, 2)
    assert until(lambda: len(list(proxy.app.traces.feed.newest("default"))) == 4)
    assert re.findall(r"words-\d", Visit(proxy).page("/")) == ["words-3", "words-2"]


def test_live_shows_no_words_of_another_user_than_the_turns(open_proxy: ProxyServer, visit: Visit):
    """Who is forgotten is found by the turn's user."""
    line = {"role": "user", "content": "mine alone", "metadata": {"user": "bob"}}
    open_proxy.chat([line], session_id="s", user_id="ann")
    settle(open_proxy)
    assert "mine alone" not in visit.page("/")


@pytest.mark.parametrize(
    ("query", "rooms"),
    [
        ("", ["b", "a"]),
        ("q=weather", ["a"]),
        ("q=SESSION:B", ["b"]),
        ("q=user:ann", ["a"]),
        ("q=user:ann+session:b", []),
        ("q=session:", ["b", "a"]),
        ("state=failed", ["b"]),
        ("state=nonsense", ["b", "a"]),
        ("slow=999999", []),
    ],
)
def test_live_is_filtered(
    open_proxy: ProxyServer, visit: Visit, upstream: FakeUpstream, query: str, rooms: list[str]
):
    open_proxy.chat([{"role": "user", "content": "How is the Weather?"}], session_id="a", user_id="ann")
    upstream.says(*answer({"error": {"message": "no"}}, status=500))
    open_proxy.chat([{"role": "user", "content": "Hello"}], session_id="b", user_id="bob")
    settle(open_proxy, 2)
    page = visit.page(f"/?{query}")
    assert re.findall(r'data-label="Session"><(?:a|span)[^>]*>(\w)</', page) == rooms
    assert ('id="none" hidden' in page) == bool(rooms)
    with visit.client.stream("GET", f"/live/events?{query}") as events:
        told = next(json.loads(line[6:]) for line in events.iter_lines() if line.startswith("data: "))
    assert len(told["ids"]) == len(rooms)


def many(proxy: ProxyServer, count: int) -> list[str]:
    """So many turns, each in a room of its own; the rooms, the newest first."""
    for number in range(count):
        proxy.chat(session_id=f"room-{number:03}", user_id="ann" if number % 2 else "bob")
    assert until(lambda: len(list(proxy.app.traces.feed.newest("default"))) == count)
    return [f"room-{number:03}" for number in reversed(range(count))]


def first_event(visit: Visit) -> dict[str, Any]:
    """Returns the first event that a newly opened page receives."""
    with visit.client.stream("GET", "/live/events") as events:
        return next(json.loads(line[6:]) for line in events.iter_lines() if line.startswith("data: "))


@pytest.mark.parametrize("keep", [0, 4])
def test_live_is_the_same_with_scripts_and_its_links_lead_somewhere(serve: Serve, keep: int):
    proxy = serve(KEYED.replace("keep: 50", f"keep: {keep}"))
    rooms, visit = many(proxy, 12), Visit(proxy)
    page, told = visit.page("/"), first_event(visit)
    rows = [told["rows"][each] for each in told["ids"]]
    for shown in (page, "".join(rows)):
        assert re.findall(r"room-\d+(?=</a>)", shown) == rooms
        looked = re.findall(r'href="(/turns/[^"]+)"', shown)
        assert len(looked) == keep
        assert {visit.get(each).status_code for each in looked} <= {200}
    assert told["ids"] == re.findall(r'data-turn="(\w+)"', page)


def test_live_lets_go_of_whoever_is_forgotten_and_of_sessions_that_are_deleted(open_proxy: ProxyServer):
    many(open_proxy, 4)
    visit = Visit(open_proxy)
    with visit.client.stream("GET", "/live/events") as events:
        told = (json.loads(line[6:]) for line in events.iter_lines() if line.startswith("data: "))
        assert len(next(told)["ids"]) == 4
        assert open_proxy.client.delete("/v1/memory/users/ann").status_code == 204
        assert len((left := next(told))["ids"]) == 2 and not left["rows"]
        assert open_proxy.client.delete("/v1/memory/sessions/room-002").status_code == 204
        assert len(next(told)["ids"]) == 1
    assert re.findall(r"room-\d+(?=</a>)", visit.page("/")) == ["room-000"]


def test_live_tells_of_turns_as_they_happen(open_proxy: ProxyServer, visit: Visit, upstream: FakeUpstream):
    upstream.says(HEAD, chunk(ROLE + delta(content="Well")), 0.8, chunk(delta(finish="stop") + DONE), END)
    with visit.client.stream("GET", "/live/events") as events:
        assert events.headers["content-type"] == "text/event-stream; charset=utf-8"
        lines = events.iter_lines()
        next(lines)
        with open_proxy.client.stream(
            "POST",
            "/v1/chat/completions",
            json={"model": "m", "stream": True, "messages": JOKE, "channel": "room-7"},
        ) as call:
            seen = states(lines, "streaming")
            call.read()
        seen += states(lines, "done")
    assert [state for state in seen if state == "streaming"]
    assert seen[-1] == "done"


def states(lines: Any, until: str) -> list[str]:
    """What became of the turn of room-7, as events tell it."""
    seen: list[str] = []
    for line in lines:
        if line.startswith("data: "):
            rows = json.loads(line.removeprefix("data: "))["rows"].values()
            seen += [re.search(r'class="state (\w+)"', row)[1] for row in rows if "room-7" in row]
        if until in seen:
            break
    return seen


def test_a_stream_of_events_ends_when_the_server_does(open_proxy: ProxyServer, visit: Visit):
    with visit.client.stream("GET", "/live/events") as events:
        lines = events.iter_lines()
        next(lines)
        open_proxy.app.drain()
        began = time.monotonic()
        list(lines)
        assert time.monotonic() - began < 3


def test_a_new_configuration_lets_the_events_of_the_old_one_end_and_keeps_the_turns(
    serve: Serve, tmp_path: Path, upstream: FakeUpstream
):
    proxy = serve(KEYED)
    turn, visit = talk(proxy), Visit(proxy)
    other = tmp_path / "other.yaml"
    other.write_text(KEYED.replace("keep: 50", "keep: 40"))
    environ = {"UPSTREAM_BASE_URL": upstream.url}
    parts = build_runtime(load(other, environ), environ, proxy.app.metrics, proxy.app.traces)
    before = proxy.app.memory.store
    with visit.client.stream("GET", "/live/events") as events:
        lines = events.iter_lines()
        next(lines)

        async def swap() -> None:
            proxy.app.swap(parts)

        proxy.run(swap())
        list(lines)
    end = time.monotonic() + 5
    while proxy.app._closing and time.monotonic() < end:
        time.sleep(0.02)
    assert not proxy.app._closing, "a page that is left open holds nothing up"
    assert proxy.app.memory.store is not before
    assert proxy.app.traces.retention.turns == 40
    assert visit.get(f"/turns/{turn}").status_code == 200
    talk(proxy, channel="room-2")
    written = next(proxy.app.traces.newest("default")).written_at
    assert written is not None


def test_a_conversation_shows_what_was_heard_and_strikes_out_the_rest(open_proxy: ProxyServer, visit: Visit):
    talk(open_proxy)
    page = visit.page("/conversations/room-1")
    lost = re.search(r"<del[^>]*><span[^>]*>not heard: </span>(.*?)</del>", page)
    assert lost and lost[1] == "win an award? Because he was outstanding in his field!"
    text = words(page)
    for said in ("Why did the scarecrow", "user123", "asr", "greeting", "interrupted", "not confirmed yet"):
        assert said in text
    assert 'datetime="2023-03-15T17:27:14.000+00:00"' in page


def test_a_conversation_shows_tool_calls_and_their_results_which_are_not_to_be_edited(
    open_proxy: ProxyServer, visit: Visit
):
    call = {
        "id": "call_1",
        "type": "function",
        "function": {"name": "weather", "arguments": '{"town": "Rome"}'},
    }
    messages = [
        {"role": "user", "content": "Is it raining?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "It is."},
    ]
    talk(open_proxy, messages=messages)
    text = words(visit.page("/conversations/room-1"))
    assert 'weather({"town": "Rome"})' in text and "answer to call_1" in text
    for position, said in ((1, "no words of its own"), (9, "too old to be edited")):
        got = visit.get(f"/conversations/room-1/edit/{position}")
        assert got.status_code == 404 and said in got.text


def test_only_the_newest_answer_of_a_client_that_replays_none_is_not_confirmed(
    open_proxy: ProxyServer, visit: Visit
):
    for text in ("One.", "Two.", "Three."):
        talk(open_proxy, messages=[{"role": "user", "content": text}])
    page = visit.page("/conversations/room-1")
    assert page.count("not confirmed yet") == 1
    assert page.index("not confirmed yet") > page.index("Three.")


def test_a_call_is_a_time_line_and_each_of_its_lines_leads_to_its_turn(open_proxy: ProxyServer, visit: Visit):
    first = talk(open_proxy)
    messages = [
        *JOKE,
        {"role": "assistant", "content": "Hello there."},
        {"role": "user", "content": "Go on."},
    ]
    second = talk(open_proxy, messages=messages)
    page = Markup(visit.page("/conversations/room-1"))
    lines = [each["href"] for each in page.of("a") if (each["href"] or "").startswith("/turns/")]
    assert {line.partition("?")[0] for line in lines} == {
        f"/turns/{first}",
        f"/turns/{second}",
    } and first != second
    bars = [each["href"] for each in page.of("a") if re.match(r"#m\d", each["href"] or "")]
    ids = {each["id"] for tag, each in page.elements if tag == "li" and "id" in each}
    assert bars and {bar[1:] for bar in bars} == ids
    assert page.text.count("Written to memory") == 2
    assert re.search(r"First token after [\d.]+ .s; Turnkeeper added [\d.]+ .s", page.text)
    part = visit.get("/conversations/room-1", headers={"x-part": "call"}).text
    assert "<html" not in part and "The call" in part


def listed(page: str) -> list[str]:
    """The sessions of a list of conversations."""
    rows = page.partition("<tbody>")[2]
    return re.findall(r'href="/conversations/([^"/?]+)"', rows)


def test_conversations_come_in_pages_the_newest_first(open_proxy: ProxyServer, visit: Visit):
    names = [f"s{i * 7 % 40:02}" for i in range(40)]
    for name in names:
        open_proxy.client.put(f"/v1/memory/sessions/{name}", json={"contents": []})
    first = visit.page("/conversations")
    assert listed(first) == names[:-31:-1]
    (older,) = [a["href"] for a in Markup(first).of("a") if a.get("rel") == "next"]
    second = visit.page(f"/conversations{older}")
    assert listed(second) == names[-31::-1] and not [
        a for a in Markup(second).of("a") if a.get("rel") == "next"
    ]
    assert "page 2 of 2" in words(second)
    assert listed(visit.page("/conversations?q=S07")) == ["s07"]
    for odd in ("0", "-1", "x", "99999999999999"):
        assert visit.get(f"/conversations?page={odd}").status_code == 200


def test_a_conversation_is_listed_with_its_caller_its_first_words_and_its_barge_ins(
    open_proxy: ProxyServer, visit: Visit
):
    talk(open_proxy)
    text = words(visit.page("/conversations").partition("<tbody>")[2])
    assert re.search(r"room-1 user123 Can you tell me a joke\? 2 1 (\N{EN DASH}|[\d.]+ s) live", text), text


def test_what_was_said_is_searched_in_the_archive_of_the_newest_callers(archiving: ProxyServer):
    talk(archiving, user_id="ann")
    assert archived(archiving, "Can you tell me a joke?")
    visit = Visit(archiving)
    assert until(lambda: "Why did the scarecrow" in visit.page("/conversations?q=scarecrow"))
    page = visit.page("/conversations?q=scarecrow")
    assert "/conversations/room-1" in page and "No session has this in its name" in page
    assert "0 stored" not in words(page)
    assert "No results" in visit.page("/conversations?q=nothing-of-this")
    assert "“how much” has only common words" in visit.page("/conversations?q=how+much")
    assert "“how much” has only common words" in visit.page("/users/ann?query=how+much")


def test_a_hit_leads_to_its_line_and_has_its_neighbours_under_it(archiving: ProxyServer):
    said = [
        *((role, f"{word} {i}") for i in range(4) for role, word in (("user", "Well"), ("assistant", "Hm"))),
        ("user", "Do you sell marigolds?"),
        ("assistant", "We certainly do."),
        ("user", "Thank you."),
    ]
    talk(archiving, messages=[{"role": role, "content": text} for role, text in said], user_id="ann")
    archived(archiving, "Do you sell marigolds?")
    visit = Visit(archiving)
    page = visit.page("/conversations?q=marigolds")
    found = re.findall(r'<li class="line (\w+)( near)?">.*?<p class="words"[^>]*>(.*?)</p>', page, re.DOTALL)
    assert found[0] == ("user", "", "Do you sell marigolds?")
    assert ("assistant", " near", "We certainly do.") in found and all(near for _, near, _ in found[1:])
    links = [unescape(each) for each in re.findall(r'href="(/conversations/room-1\?[^"]+)"', page)]
    places = [visit.get(link).headers["location"].partition("#")[2] for link in links]
    assert places[0] == "m8" and set(places) <= {f"m{i}" for i in range(20)}
    assert words(visit.page(visit.get(links[0]).headers["location"])).count("marigolds") > 0
    gone = visit.get("/conversations/room-1?at=5.000&role=user&turn=1")
    assert gone.headers["location"] == "/conversations/room-1"


def test_work_in_the_background_makes_no_conversation_newer(open_proxy: ProxyServer, visit: Visit):
    for name in ("older", "newer"):
        talk(open_proxy, channel=name)
    assert listed(visit.page("/conversations")) == ["newer", "older"]
    form = "/conversations/older/edit/1"
    (field,) = [each for each in Markup(visit.page(form)).of("input") if each.get("name") == "shown"]
    visit.post(form, seen=form, shown=field["value"] or "", text="Else.")  # is saved as that work is
    assert "Else." in visit.page("/conversations/older")
    assert listed(visit.page("/conversations")) == ["newer", "older"]


def test_a_session_is_found_by_its_name(visit: Visit):
    got = visit.get("/conversations", params={"id": "a b/ç"})
    assert (got.status_code, got.headers["location"]) == (303, "/conversations/a%20b%2F%C3%A7")


def test_a_thousand_sessions_stay_quick(open_proxy: ProxyServer, visit: Visit):
    for i in range(1000):
        open_proxy.client.put(
            f"/v1/memory/sessions/s{i:04}", json={"contents": [{"role": "user", "content": "x"}]}
        )
    visit.page("/conversations")
    began = time.monotonic()
    visit.page("/conversations?page=17")
    assert time.monotonic() - began < 1


def test_a_long_conversation_comes_in_pages(open_proxy: ProxyServer, visit: Visit):
    contents = [{"role": "user", "content": f"line {i}", "turn_id": i} for i in range(450)]
    open_proxy.client.put("/v1/memory/sessions/long", json={"contents": contents})
    page = visit.page("/conversations/long")
    assert "line 449<" in page and "line 250<" in page and "line 249<" not in page
    assert "Earlier messages are no longer in the window" in page
    older = visit.page("/conversations/long?before=250")
    assert "line 249<" in older and "line 250<" not in older
    assert "line 0<" in visit.page("/conversations/long?before=50")
    assert "/edit/449" in page and "/edit/260" not in page


def test_words_can_be_edited(open_proxy: ProxyServer, visit: Visit):
    talk(open_proxy)
    path = "/conversations/room-1/edit/1"
    shown = re.search(r'name="shown" value="(\w+)"', visit.page(path))[1]
    assert visit.post(path, seen=path, shown=shown, text="Tell a joke!").status_code == 303
    held = open_proxy.client.get("/v1/memory/sessions/room-1").json()["contents"]
    assert held[1]["content"] == "Tell a joke!"
    assert visit.post(path, seen=path, shown=shown, text="Once more").status_code == 409


def test_neither_an_edit_nor_a_state_keeps_a_conversation_for_longer(serve: Serve):
    proxy = serve(KEYED.replace("keep_messages: 20}", "keep_messages: 20, ttl: 3s}"))
    talk(proxy)
    spoke = time.monotonic()
    time.sleep(1.5)
    assert edited(Visit(proxy), "/conversations/room-1/edit/1", "Tell a joke!").status_code == 303
    assert proxy.client.put("/v1/memory/sessions/room-1/state", json={"plan": "small"}).status_code == 200
    assert proxy.client.get("/v1/memory/sessions/room-1").status_code == 200
    time.sleep(max(0.0, spoke + 3.2 - time.monotonic()))
    assert proxy.client.get("/v1/memory/sessions/room-1").status_code == 404


def edited(visit: Visit, path: str, text: str) -> Any:
    """What comes of words that are sent from the page that edits a turn."""
    shown = re.search(r'name="shown" value="(\w+)"', visit.page(path))[1]
    return visit.post(path, seen=path, shown=shown, text=text)


@pytest.mark.parametrize("text", ["", " \r\n "])
def test_words_cannot_be_edited_to_nothing(open_proxy: ProxyServer, visit: Visit, text: str):
    talk(open_proxy)
    got = edited(visit, "/conversations/room-1/edit/1", text)
    assert got.status_code == 400 and "write what was said" in words(got.text)
    held = open_proxy.client.get("/v1/memory/sessions/room-1").json()["contents"]
    assert held[1]["content"] == "Can you tell me a joke?"


def test_an_edited_answer_is_whole_and_what_was_not_heard_goes_with_the_old_words(
    open_proxy: ProxyServer, visit: Visit
):
    talk(open_proxy)
    assert "outstanding" in visit.page("/conversations/room-1")
    assert edited(visit, "/conversations/room-1/edit/2", "Of course.").status_code == 303
    held = open_proxy.client.get("/v1/memory/sessions/room-1").json()["contents"][2]
    assert held["content"] == "Of course." and not held["metadata"].keys() & {"interrupted", "original"}
    assert "outstanding" not in visit.page("/conversations/room-1")


def test_words_that_are_saved_as_they_are_change_nothing(open_proxy: ProxyServer, visit: Visit):
    talk(open_proxy)
    before = open_proxy.client.get("/v1/memory/sessions/room-1").json()["contents"]
    assert edited(visit, "/conversations/room-1/edit/2", before[2]["content"]).status_code == 303
    assert open_proxy.client.get("/v1/memory/sessions/room-1").json()["contents"] == before


def summarised(proxy: ProxyServer) -> None:
    """A conversation of eight messages, the first four of which are in a summary."""
    contents = [{"role": "user", "content": f"line {i}", "turn_id": i} for i in range(8)]
    proxy.client.put("/v1/memory/sessions/long", json={"contents": contents})
    store, key = proxy.app.memory.store, Key("default", "long")
    held = proxy.run(store.read(key))
    session = decode(held.blob)
    summary = Segment(
        text="They <b>talked</b>.", call=0, turn=session.entries[3].turn, messages=4, model="m-1"
    )
    blob = encode(msgspec.structs.replace(session, summaries=(summary,)))
    assert proxy.run(store.write(key, BlobWrite(blob, version=held.version, ttl=60.0)))


def test_a_conversation_tells_what_a_summary_stands_for(open_proxy: ProxyServer, visit: Visit):
    summarised(open_proxy)
    page = visit.page("/conversations/long")
    assert "4 messages" in words(page) and "by m-1" in words(page).replace(" · ", " ")
    assert "They &lt;b&gt;talked&lt;/b&gt;." in page
    before, after = page.split("Not summarised from here on")
    assert "line 3<" in before and "line 4<" in after and before.count("line covered") == 4


def test_a_summary_of_an_edited_turn_is_stale(open_proxy: ProxyServer, visit: Visit):
    summarised(open_proxy)
    for position in (6, 1):
        path = f"/conversations/long/edit/{position}"
        shown = re.search(r'name="shown" value="(\w+)"', visit.page(path))[1]
        assert visit.post(path, seen=path, shown=shown, text="Other words").status_code == 303
        assert ("stale, a turn" in visit.page("/conversations/long")) == (position == 1)


def test_a_conversation_is_deleted_after_a_question(open_proxy: ProxyServer, visit: Visit):
    turn = talk(open_proxy)
    path = "/conversations/room-1/delete"
    assert "Delete this conversation?" in visit.page(path)
    assert visit.get("/conversations/room-1").status_code == 200
    assert visit.post(path, seen=path).status_code == 303
    assert visit.get("/conversations/room-1").status_code == 404
    assert visit.get(f"/turns/{turn}").status_code == 404


def test_deleting_over_rest_takes_the_turns_along(open_proxy: ProxyServer, visit: Visit):
    turn = talk(open_proxy)
    open_proxy.client.delete("/v1/memory/sessions/room-1")
    assert visit.get(f"/turns/{turn}").status_code == 404


def test_a_turn_shows_its_time_its_filters_and_its_answer(open_proxy: ProxyServer, visit: Visit):
    page = visit.page(f"/turns/{talk(open_proxy)}")
    text = words(page)
    for stage in ("Receive", "Session", "Recall", "Filters", "Upstream", "First token", "Chunks", "Record"):
        assert f">{stage}</th>" in page
    assert "Hello there." in text
    assert "the caller did not hear: win an award?" in text
    assert "restore_interrupted" in text and "changes nothing" in text
    assert "messages[].metadata" in text
    assert "channel in the body" in text and "body:" not in text
    assert "not a field that OpenAI takes" in text and "µs" not in text
    assert "Tokens 5 in" in text


def test_a_turn_tells_what_stayed_in_the_prefix(
    open_proxy: ProxyServer, visit: Visit, upstream: FakeUpstream
):
    usage = {"prompt_tokens": 90, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 64}}
    said = delta(content="Yes.") + delta(finish="stop") + event(choices=[], usage=usage)
    upstream.says(HEAD, chunk(ROLE + said + DONE), END)
    assert "no turn before is kept" in visit.page(f"/turns/{talk(open_proxy)}")
    more = [*JOKE, {"role": "user", "content": "Go on.", "turn_id": 9}]
    open_proxy.chat(more, channel="room-1", stream=True)
    settle(open_proxy, 2)
    page = words(visit.page(f"/turns/{newest(open_proxy)}"))
    assert re.search(r"Prompt prefix reused \d\d %", page)
    assert "64 tokens cached" in page
    assert "Turn before" in page


def test_values_that_nobody_named_are_not_shown(open_proxy: ProxyServer, visit: Visit):
    turn = talk(
        open_proxy,
        rtm_token="never-to-be-seen",
        headers={"authorization": "Bearer never-to-be-seen", "x-secret": "never-to-be-seen"},
    )
    page = visit.page(f"/turns/{turn}")
    assert "never-to-be-seen" not in page
    assert "rtm_token" in page and "text of 16 characters" in page


def test_keys_are_not_kept_with_a_turn(open_proxy: ProxyServer):
    talk(open_proxy, headers={"authorization": "Bearer s", "api-key": "s", "cookie": "s=s"})
    content = next(open_proxy.app.traces.newest("default")).content
    assert content.request.headers.keys() & {"authorization", "api-key", "cookie"} == set()
    assert content.headers.keys() & {"authorization", "api-key", "cookie"} == set()


def test_a_failed_turn_says_why(open_proxy: ProxyServer, visit: Visit, upstream: FakeUpstream):
    upstream.says(*answer({"error": {"message": "no"}}, status=500))
    open_proxy.chat(JOKE, channel="room-1")
    settle(open_proxy)
    page = words(visit.page(f"/turns/{newest(open_proxy)}"))
    assert "The upstream answered 500." in page and "failed" in page
    assert "no answer came" in page and "No answer was sent to the client." in page
    assert "first bytes" not in page and "streams" not in page and "Chunks" not in page
    live = visit.page("/")
    assert "failed" in live and "upstream main answered 500" in live
    assert "/conversations/room-1" not in live and visit.get("/conversations/room-1").status_code == 404
    health = words(visit.page("/health"))
    assert "upstream main answered 500" in health and "Tokens, last hour not reported" in health


def test_a_request_that_cannot_be_read_is_a_turn_that_failed(open_proxy: ProxyServer, visit: Visit):
    open_proxy.client.post("/v1/chat/completions", content=b'{"messages": 7}')
    settle(open_proxy)
    assert "must be an array" in visit.page(f"/turns/{newest(open_proxy)}")


def test_without_content_nothing_that_was_said_is_kept(serve: Serve):
    proxy = serve(KEYED.replace("content: true", "content: false"))
    visit, turn = Visit(proxy), talk(proxy)
    trace = next(proxy.app.traces.newest("default"))
    assert trace.content is None and not trace.answer
    page = visit.page(f"/turns/{turn}")
    assert "scarecrow" not in page and "content: false" in page and "Upstream" in page


def test_no_more_turns_are_kept_than_the_setting_says(serve: Serve):
    proxy = serve(KEYED.replace("keep: 50", "keep: 3"))
    for _ in range(5):
        proxy.chat()
    assert len(list(proxy.app.traces.newest("default"))) == 3
    off = serve(KEYED.replace("keep: 50", "keep: 0"))
    off.chat(channel="a")
    assert Visit(off).get("/").status_code == 200
    assert not list(off.app.traces.newest("default")) and not off.app.traces._unwritten


def test_users_are_those_of_whom_anything_is_stored(archiving: ProxyServer):
    for name in ("ann", "bob"):
        talk(archiving, user_id=name, channel=f"room-{name}")
    archived(archiving, "Can you tell me a joke?")
    archiving.app.traces.feed.remove("default", lambda *_: True)  # as after a restart
    visit = Visit(archiving)
    assert until(
        lambda: re.findall(r'href="/users/(\w+)"', visit.page("/users")) == ["ann", "bob", "user123"]
    )
    assert "/conversations/room-ann" in visit.page("/users/ann").partition('id="calls"')[2]
    assert re.findall(r'href="/users/(\w+)"', visit.page("/users?after=ann")) == ["bob", "user123"]


def test_users_are_listed_once_they_were_named(open_proxy: ProxyServer, visit: Visit):
    talk(open_proxy, user_id="ann")
    assert "ann" in words(visit.page("/users"))


def test_health_tells_of_upstreams_memory_and_the_hour(
    open_proxy: ProxyServer, visit: Visit, upstream: FakeUpstream
):
    usage = {"prompt_tokens": 1200, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 900}}
    said = delta(content="Yes.") + delta(finish="stop") + event(choices=[], usage=usage)
    upstream.says(HEAD, chunk(ROLE + said + DONE), END)
    talk(open_proxy)
    page = visit.page("/health")
    text = words(page)
    assert "Memory answers in" in text and "Turns, last hour 1" in text and "main openai" in text
    assert re.search(r"Added by Turnkeeper, last hour p50 [\d.]+ (ms|µs), p99 [\d.]+ (ms|µs)", text)
    assert "Tokens, last hour 1,200 in, 3 out" in text and "Cached share of prompts 75 %" in text
    times = [each["datetime"] for each in Markup(page).of("time") if each.get("data-form") == "hour"]
    assert len(times) == 27 and times[0] < times[1] < times[2]


FALLING_BACK = """
keys: "${TURNKEEPER_KEYS:-}"
traces: {keep: 50}
upstreams:
  main: {base_url: "${UPSTREAM_BASE_URL}"}
  reserve: {base_url: "practice:", model: spare}
pipelines: {default: {upstreams: [main, reserve]}}
"""
SUMS = ("In flight", "Write queue")


def test_health_shows_each_tenant_its_own_turns_and_models(serve: Serve, upstream: FakeUpstream):
    proxy = serve(FALLING_BACK, TURNKEEPER_KEYS=KEYS)
    upstream.says(CLOSE)
    for _ in range(6):
        proxy.chat(model="model-of-one", headers={"authorization": "Bearer secret-1"})
    proxy.chat(model="model-of-two", headers={"authorization": "Bearer secret-2"})
    end = time.monotonic() + 5
    while sum(len(list(proxy.app.traces.newest(tenant))) for tenant in ("one", "two")) < 7:
        assert time.monotonic() < end
        time.sleep(0.01)
    one, two = (words(signed_in(proxy, key).page("/health")) for key in ("secret-1", "secret-2"))
    assert "Turns, last hour 6" in one and "open model-of-one" in one
    assert "Turns, last hour 1" in two and "model-of-one" not in two
    assert not [name for name in SUMS if name in one or name in two]


def test_health_shows_a_single_tenant_all_that_the_server_does(
    serve: Serve, open_proxy: ProxyServer, upstream: FakeUpstream
):
    upstream.says(CLOSE)
    only = serve(
        FALLING_BACK.replace("keep: 50", "keep: 0"), TURNKEEPER_KEYS="one:secret-1,one:secret-4:chat"
    )
    for _ in range(6):
        only.chat(model="m-1", headers={"authorization": "Bearer secret-1"})
    page = words(signed_in(only).page("/health"))
    assert "Turns, last hour 6" in page and "open m-1" in page
    for told in (page, words(Visit(open_proxy).page("/health"))):
        assert all(name in told for name in SUMS)


def test_a_dead_memory_is_a_page_that_says_so(serve: Serve, tmp_path: Path):
    away = KEYED.replace('"memory:"', "redis://127.0.0.1:1")
    visit = Visit(serve(away))
    got = visit.get("/conversations")
    assert got.status_code == 503 and "Memory is unavailable" in got.text
    assert visit.get("/").status_code == 200
    health = words(visit.page("/health"))
    assert "Server degraded Memory" in health
    assert "memory : The store does not answer" in health


def test_health_says_of_the_server_what_readyz_says(
    open_proxy: ProxyServer, visit: Visit, upstream: FakeUpstream
):
    assert "Server ready Memory answers" in words(visit.page("/health"))
    upstream.says(CLOSE)
    for _ in range(6):
        open_proxy.chat(model="m-1")
    assert visit.get("/readyz").json()["status"] == "unavailable"
    assert "Server unavailable Memory answers" in words(visit.page("/health"))


def test_without_memory_conversations_say_what_to_set(serve: Serve):
    visit = Visit(serve())
    got = visit.get("/conversations")
    assert got.status_code == 404 and "memory:" in got.text
    assert visit.get("/health").status_code == 200


@pytest.mark.parametrize("over", ["page", "rest", "session"])
def test_without_memory_what_is_kept_for_the_page_can_be_forgotten_too(serve: Serve, over: str):
    proxy = serve()
    visit = Visit(proxy)
    for user in ("ann", "bob"):
        proxy.chat(session_id=f"of {user}", user_id=user)
    assert until(lambda: len(list(proxy.app.traces.newest("default"))) == 2)
    told = visit.get("/users/ann/export").json()
    assert [turn["session_id"] for turn in told["kept_turns"]] == ["of ann"]
    assert proxy.client.get("/v1/memory/users/ann/export").json() == told
    if over == "page":
        assert visit.post("/users/ann/forget", seen="/users/ann/forget").status_code == 303
    else:
        path = "users/ann" if over == "rest" else "sessions/of%20ann"
        assert proxy.client.delete(f"/v1/memory/{path}").status_code == 204
    assert [trace.report.user for trace in proxy.app.traces.newest("default")] == ["bob"]
    assert "ann" not in words(visit.page("/")).split()


def test_without_memory_a_deletion_is_of_ones_own_tenant_alone(serve: Serve):
    proxy = serve(f'keys: "{KEYS}"\n{CONFIG}')
    for secret in ("secret-1", "secret-2"):
        proxy.chat(session_id="s", user_id="ann", headers={"authorization": f"Bearer {secret}"})
    assert until(lambda: list(proxy.app.traces.newest("one")) and list(proxy.app.traces.newest("two")))
    for path in ("users/ann", "sessions/s"):
        got = proxy.client.delete(f"/v1/memory/{path}", headers={"authorization": "Bearer secret-1"})
        assert got.status_code == 204
    assert not list(proxy.app.traces.newest("one")) and list(proxy.app.traces.newest("two"))


# --- hostile text


def test_hostile_text_stays_text_everywhere(open_proxy: ProxyServer, visit: Visit, upstream: FakeUpstream):
    upstream.says(HEAD, chunk(ROLE + delta(content=HOSTILE) + delta(finish="stop") + DONE), END)
    interrupted = {"source": HOSTILE, "user": HOSTILE, "interrupted": True, "original": f"Well {HOSTILE}"}
    messages = [
        {"role": HOSTILE[:30], "content": HOSTILE, HOSTILE: HOSTILE},
        {
            "role": "user",
            "content": HOSTILE,
            "name": HOSTILE,
            "metadata": {"source": HOSTILE, "user": HOSTILE},
        },
        {"role": "assistant", "content": "Well", "metadata": interrupted},
        {"role": "user", "content": [{"type": HOSTILE, "text": HOSTILE}, {"type": "text", "text": HOSTILE}]},
    ]
    body = {"session_id": HOSTILE[:200].replace("\u202e", ""), "user_id": "<b>ann", "tools": [{HOSTILE: 1}]}
    got = open_proxy.chat(
        messages, model=HOSTILE, stream=True, metadata={HOSTILE: HOSTILE}, **{HOSTILE: 1}, **body
    )
    assert got.status_code == 200
    settle(open_proxy)
    links = [
        each["href"] for each in Markup(visit.page("/conversations")).of("a") if each["href"].count("/") > 1
    ]
    edit = f"{links[0]}/edit/1"
    for path in [*PAGES, f"/turns/{newest(open_proxy)}", *links, edit]:
        assert_harmless(visit.page(path))
    form = {
        "pipeline": HOSTILE,
        "example": HOSTILE,
        "request": json.dumps({"model": HOSTILE, "messages": messages}),
    }
    assert_harmless(
        visit.post("/playground", seen="/playground", yaml="request: [repair_history]", **form).text
    )
    for yaml in (HOSTILE, f"request: ['{HOSTILE}']".replace("\"'", ""), "request: [<script>]", f"{'<b>'}: 1"):
        assert_harmless(visit.post("/playground", seen="/playground", yaml=yaml, **form).text)


def assert_harmless(page: str) -> None:
    markup = Markup(page)
    assert [
        each for each in markup.of("script") if not (each.get("src") or "").startswith("/assets/page.js")
    ] == []
    assert markup.of("img") == [] and markup.of("b") == [
        each for each in markup.of("b") if each.get("src") is None
    ]
    assert "<script>alert" not in page and "<img src=x" not in page
    assert "5332114" not in re.findall(r"\{\{1234\*4321\}\}|\b5332114\b", page)


def test_half_a_character_is_shown_as_far_as_it_can_be(open_proxy: ProxyServer, visit: Visit):
    body = b'{"model": "m", "channel": "c", "messages": [{"role": "user", "content": "caf\\ud83d"}]}'
    assert open_proxy.client.post("/v1/chat/completions", content=body).status_code == 200
    settle(open_proxy)
    assert "caf" in visit.page(f"/turns/{newest(open_proxy)}")
    assert "caf" in visit.page("/conversations/c")


# --- the playground


def test_an_example_of_each_engine_is_the_one_that_the_tests_know():
    for name in TITLES:
        golden = "agora_custom" if name == "agora" else name
        assert json.loads(example(name)) == json.loads((GOLDEN / f"dialects/{golden}.json").read_text())


def test_each_engines_example_can_be_tried(visit: Visit):
    for name in TITLES:
        page = words(visit.page(f"/playground?example={name}"))
        assert "The prompt that would be sent" in page, name
        assert "repair_history" in page, name


def tried(
    visit: Visit,
    yaml: str,
    request: str = '{"model": "m", "messages": [{"role": "user", "content": "Hi"}]}',
    **form: str,
) -> str:
    got = visit.post("/playground", seen="/playground", yaml=yaml, request=request, **form)
    assert got.status_code == 200, got.text
    return words(got.text)


def test_a_pipeline_can_be_edited_and_tried(visit: Visit, upstream: FakeUpstream):
    page = tried(
        visit,
        "request:\n  - user_context: {template: '{user} says: '}\n",
        '{"model": "m", "messages": [{"role": "user", "content": "Hi", "metadata": {"user": "ann"}}]}',
    )
    assert "ann says: " in page
    assert not upstream.requests


def test_faults_are_those_of_the_check(visit: Visit):
    page = tried(visit, "request:\n  - drop_messages: {source: [silence]}\n  - nothing_of_ours\n")
    assert "line 2" in page and "unknown key 'source'" in page and "did you mean 'sources'" in page
    assert "line 3" in page and "no filter named 'nothing_of_ours'" in page


def test_doubts_are_told_too(visit: Visit):
    page = tried(visit, "request:\n  - merge_consecutive\n  - restore_interrupted\n")
    assert "put this after restore_interrupted" in page


def test_nothing_leads_out_of_the_playground(visit: Visit):
    for yaml, said in (
        ("upstreams: {main: {base_url: 'http://169.254.169.254/v1'}}", "unknown key"),
        ("filters: [/etc/passwd.py]", "unknown key"),
        ("request: [system_prompt: {text: '${UPSTREAM_BASE_URL}', mode: append}]", "${UPSTREAM_BASE_URL}"),
        ("request: [glossary]", "no filter named"),
        ("request: &a [*a]", "levels deep"),
        ("x" * 40_000, "at most 32 KiB"),
        ("request: [", "not YAML"),
        ("request: !!python/object/apply:os.system [ls]", "tag"),
    ):
        assert said in tried(visit, yaml), yaml


def test_filters_of_ones_own_can_be_tried_where_a_pipeline_has_loaded_them(serve: Serve):
    visit = Visit(serve(Path(__file__).parents[2] / "examples/own_filter/own.yaml"))
    text = re.search(r'<textarea id="yaml".*?>\n(.*?)</textarea>', visit.page("/playground"), re.DOTALL)[1]
    assert "glossary" in text
    page = tried(visit, unescape(text))
    assert "2 glossary" in page and "The prompt that would be sent" in page


def test_packages_that_no_pipeline_uses_are_not_imported(visit: Visit, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(
        "proxy.settings.filter_registry.load_entry_point", lambda name: pytest.fail(f"{name} was looked for")
    )
    assert "no filter named" in tried(visit, "request: [of_some_package]")


def test_a_request_that_is_wrong_is_said_to_be(visit: Visit):
    assert "'messages' is missing" in tried(visit, "request: []", "{}")
    assert "Paste a request" in tried(visit, "request: []", " ")
    assert "at most 256 KB" in tried(visit, "request: []", json.dumps({"messages": "x" * 300_000}))


def test_what_would_take_long_is_cut_short(visit: Visit):
    many = [{"role": "user", "content": f"a{i} b{i}", "metadata": {"user": "u"}} for i in range(3000)]
    request = json.dumps({"model": "m", "messages": many})
    page = tried(visit, "request: [user_context, merge_consecutive]", request)
    assert "2600 messages before these" in page
    steps = "request: [" + "repair_history, " * 51 + "]"
    assert "at most 50" in tried(visit, steps)


def test_a_script_gets_the_part_that_changes(visit: Visit):
    token = visit.token("/playground")
    form = {"token": token, "yaml": "request: []", "request": "{}", "pipeline": "default"}
    got = visit.client.post("/playground", data=form, headers={"x-part": "tried"})
    assert "<html" not in got.text and "'messages' is missing" in Markup(got.text).text


def test_a_pipeline_is_loaded_by_its_name(visit: Visit):
    got = visit.post(
        "/playground", seen="/playground", load="yes", pipeline="bare", example="vapi", yaml="x: 1"
    )
    area = re.search(r'<textarea id="yaml".*?>\n(.*?)</textarea>', got.text, re.DOTALL)
    assert area[1] == "request: []"
    assert "Book a table." in got.text


# --- what it costs


@pytest.mark.parametrize("module", ["jinja2", "proxy.page.app", "re2"])
def test_what_only_some_need_is_not_imported_with_the_shipped_configuration(module: str):
    script = (
        "import sys; from pathlib import Path;"
        "from proxy.server.app import build_app; from proxy.settings.load import load;"
        "build_app(load(Path('config/agora.yaml'), {'MEMORY_URL': 'memory:'}), {});"
        f"sys.exit({module!r} in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


# --- users and agents


@pytest.fixture
def archiving(serve: Serve, tmp_path: Path) -> ProxyServer:
    """With an archive beside the sessions."""
    return serve(KEYED.replace('"memory:"', f'"sqlite:{tmp_path / "memory.db"}"'))


def archive_of(proxy: ProxyServer) -> Any:
    return proxy.app.memory.archiving.archive


def test_a_persons_words_are_found(archiving: ProxyServer):
    talk(archiving, user_id="ann")
    visit = Visit(archiving)
    assert "/users/ann" in visit.page("/users")
    end = time.monotonic() + 10
    found = ""
    while not ("/conversations/room-1" in found and "Why did the scarecrow" in found):
        assert time.monotonic() < end, found
        time.sleep(0.1)
        found = visit.page("/users/ann?query=scarecrow").partition('id="turns-kept"')[0]
    assert "No results" in visit.page("/users/bob?query=scarecrow")


def archived(proxy: ProxyServer, text: str, user: str = "ann") -> list[str]:
    """What is archived of a user's words, once ``text`` is among it."""
    end = time.monotonic() + 10
    while True:
        proxy.run(proxy.app.memory.archiving.archivist.idle())
        turns = proxy.client.get(f"/v1/memory/users/{user}/export").json()["turns"]
        kept = [turn["message"]["content"] for turn in turns]
        if text in kept:
            return kept
        assert time.monotonic() < end, kept
        time.sleep(0.05)


def test_edited_words_are_found_and_those_before_them_are_not(archiving: ProxyServer):
    talk(archiving, user_id="ann")
    assert archived(archiving, "Can you tell me a joke?")
    assert edited(Visit(archiving), "/conversations/room-1/edit/1", "Sing a ballad.").status_code == 303
    assert "Can you tell me a joke?" not in archived(archiving, "Sing a ballad.")
    asked = {"user": "ann", "query": "ballad or joke", "limit": 10}
    found = archiving.client.post("/v1/memory/search", json=asked).json()["results"]
    told = [each["text"] for each in found]
    assert "Sing a ballad." in told and "Can you tell me a joke?" not in told


def test_whoever_deletes_a_conversation_is_told_what_stays_of_it_in_the_archive(
    archiving: ProxyServer, open_proxy: ProxyServer, visit: Visit
):
    talk(archiving, user_id="ann b")
    kept = Visit(archiving)
    page = kept.page("/conversations/room-1/delete")
    assert "stay in the archive" in words(page)
    assert {"/users/ann%20b", "/users/ann%20b/forget"} <= {each["href"] for each in Markup(page).of("a")}
    archiving.client.put("/v1/memory/sessions/nobodys", json={"contents": []})
    assert "archive" not in words(kept.page("/conversations/nobodys/delete"))
    talk(open_proxy, user_id="ann b")
    assert "archive" not in words(visit.page("/conversations/room-1/delete"))


def test_a_deleted_conversation_is_not_said_to_have_expired(archiving: ProxyServer):
    talk(archiving, user_id="ann")
    assert archived(archiving, "Can you tell me a joke?")
    visit = Visit(archiving)
    assert visit.post("/conversations/room-1/delete", seen="/conversations/room-1/delete").status_code == 303
    page = words(visit.page("/conversations/room-1"))
    assert "Only in the archive" in page and "Expired" not in page


LOGGED = "/conversations/room-1/archive/delete"


def test_a_conversation_in_the_archive_is_deleted_after_a_question(archiving: ProxyServer):
    turn = talk(archiving, user_id="ann")
    assert archived(archiving, "Can you tell me a joke?")
    visit = Visit(archiving)
    assert visit.get(LOGGED).status_code == 409
    visit.post("/conversations/room-1/delete", seen="/conversations/room-1/delete")
    assert LOGGED in {each["href"] for each in Markup(visit.page("/conversations/room-1")).of("a")}
    assert "Delete this conversation?" in visit.page(LOGGED)
    assert visit.get("/conversations/room-1").status_code == 200
    assert visit.post(LOGGED, seen=LOGGED).status_code == 303
    for path in ("/conversations/room-1", LOGGED, f"/turns/{turn}"):
        assert visit.get(path).status_code == 404
    assert "room-1" not in visit.page("/conversations/archive/all")
    assert "No results" in visit.page("/users/ann?query=scarecrow")


def test_a_conversation_that_began_anew_meanwhile_is_not_deleted_with_the_archived_one(
    archiving: ProxyServer,
):
    talk(archiving, user_id="ann")
    assert archived(archiving, "Can you tell me a joke?")
    archiving.client.delete("/v1/memory/sessions/room-1")
    visit = Visit(archiving)
    token = visit.token(LOGGED)
    talk(archiving, user_id="ann")
    got = visit.post(LOGGED, token=token)
    assert got.status_code == 409 and "delete that first" in got.text
    assert visit.get("/conversations/room-1").status_code == 200
    assert archived(archiving, "Can you tell me a joke?")


def test_nobody_deletes_another_tenants_archived_conversation(serve: Serve, tmp_path: Path):
    config = KEYED.replace('"memory:"', f'"sqlite:{tmp_path / "memory.db"}"')
    proxy = serve(config, TURNKEEPER_KEYS=KEYS)
    mine = bearer("secret-1")
    proxy.chat(JOKE, channel="room-1", user_id="ann", headers=mine)
    settle(proxy)
    proxy.run(proxy.app.memory.archiving.archivist.idle())
    proxy.client.delete("/v1/memory/sessions/room-1", headers=mine)
    one, two = signed_in(proxy), signed_in(proxy, "secret-2")
    assert two.get(LOGGED).status_code == 404
    assert two.post(LOGGED, seen="/").status_code == 303
    for refused in ({}, {"token": two.token("/")}):
        assert one.post(LOGGED, **refused).status_code == 403
    fields = {"token": one.token(LOGGED)}
    foreign = {"sec-fetch-site": "cross-site"}
    assert one.client.post(LOGGED, data=fields, headers=foreign).status_code == 403
    assert "Can you tell me a joke?" in one.page("/conversations/room-1")
    assert one.post(LOGGED, seen=LOGGED).status_code == 303
    assert one.get("/conversations/room-1").status_code == 404


@pytest.mark.parametrize("name", [".", ".."])
def test_a_name_that_browsers_take_for_a_way_up_is_no_link(archiving: ProxyServer, name: str):
    """Whoever was called so before such names were refused is shown all the same."""
    account = talk(archiving, user_id="ann")
    feed, traces = archiving.app.feed, archiving.app.traces
    trace = msgspec.structs.replace(
        traces.find("default", account),
        report=msgspec.structs.replace(next(feed.newest("default")), session=name, user=name),
    )
    traces._traces[trace.number] = trace
    feed.publish(trace.report)
    visit = Visit(archiving)
    for path in ("/", "/users", "/conversations", f"/turns/{account}"):
        links = [str(each["href"]) for each in Markup(visit.page(path)).of("a")]
        assert not [each for each in links if each.rstrip("/").endswith(f"/{name}")], path
    for path in ("/conversations", "/users", "/agents"):
        assert visit.get(path, params={"id": name}).status_code == 404


def test_facts_are_shown_and_removed(archiving: ProxyServer):
    person = Owner("default", "ann")
    fact = Fact(id="f/1", text="Likes <b>jokes</b>", created=time.time(), evidence=("a", "b"))
    archiving.run(archive_of(archiving).add_fact(person, fact))
    visit = Visit(archiving)
    page = words(visit.page("/users/ann"))
    assert "Likes <b>jokes</b>" in page and "from 2 turns" in page
    assert visit.post("/users/ann/facts/f%2F1").status_code == 403
    assert visit.post("/users/ann/facts/f%2F1", seen="/users/ann").status_code == 303
    assert "No facts are stored." in visit.page("/users/ann")


def test_what_the_next_call_is_told_is_shown(serve: Serve):
    proxy = serve(KEYED.replace("[repair_history,", "[repair_history, inject_last_call,"))
    visit = Visit(proxy)
    assert "Nothing: no call of this user has ended yet" in words(visit.page("/users/eve"))
    profile = {"text": "Gold member"}
    assert proxy.client.put("/v1/memory/users/eve/profile", json=profile).status_code == 200
    talk(proxy, messages=[{"role": "user", "content": "Call me back on Monday."}], user_id="eve")
    assert until(lambda: "Monday" in visit.page("/users/eve").partition('id="turns-kept"')[0], 20)
    page = words(visit.page("/users/eve")).partition("What the next call is told")[2]
    assert "Gold member" in page and "The last conversation with the caller" in page


def test_facts_that_mem0_keeps_are_shown_and_removed_there(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, "mem0", installed())
    kept = f'"sqlite:{tmp_path / "memory.db"}", facts: {{upstream: main, store: mem0}}'
    proxy = serve(KEYED.replace('"memory:"', kept))
    visit, path = Visit(proxy), "/v1/memory/users/ann/facts"
    fact = proxy.client.post(path, json={"text": "Likes jazz."}).json()["id"]
    assert "Likes jazz." in words(visit.page("/users/ann"))
    assert [each["text"] for each in visit.get("/users/ann/export").json()["facts"]] == ["Likes jazz."]
    assert visit.post(f"/users/ann/facts/{fact}", seen="/users/ann").status_code == 303
    assert "No facts are stored." in visit.page("/users/ann")
    assert proxy.client.get(path).json()["data"] == []


def test_all_of_a_person_can_be_carried_away(archiving: ProxyServer):
    talk(archiving, user_id="ann")
    got = Visit(archiving).get("/users/ann/export")
    assert got.headers["content-disposition"].startswith("attachment")
    told = got.json()
    assert told["user"] == "ann" and told["sessions"][0]["id"] == "room-1"
    (kept,) = told["kept_turns"]
    assert kept["answer"] == "Hello there." and kept["messages"][1]["content"] == "Can you tell me a joke?"


@pytest.mark.parametrize("over", ["page", "rest"])
def test_a_person_is_forgotten_whole(archiving: ProxyServer, over: str):
    turn = talk(archiving, user_id="ann")
    visit = Visit(archiving)
    if over == "page":
        assert "Forget this user?" in visit.page("/users/ann/forget")
        assert visit.post("/users/ann/forget").status_code == 403
        assert visit.post("/users/ann/forget", seen="/users/ann/forget").status_code == 303
    else:
        assert archiving.client.delete("/v1/memory/users/ann").status_code == 204
    assert visit.get(f"/turns/{turn}").status_code == 404
    assert visit.get("/conversations/room-1").status_code == 404
    assert "ann" not in words(visit.page("/users"))


def test_what_somebody_said_in_anothers_turn_is_theirs_too(open_proxy: ProxyServer):
    talk(open_proxy, user_id="ann")  # user123 spoke, as the engine's marks have it
    (kept,) = Visit(open_proxy).get("/users/user123/export").json()["kept_turns"]
    assert [each["role"] for each in kept["messages"]] == ["user", "user"] and not kept["answer"]
    open_proxy.client.delete("/v1/memory/users/user123")
    assert not list(open_proxy.app.traces.newest("default"))


def test_without_an_archive_it_is_said_what_to_set(open_proxy: ProxyServer, visit: Visit):
    assert "ARCHIVE_URL" in visit.page("/users/ann")
    assert visit.get("/users/%20").status_code == 404


def test_an_agents_episodes_are_shown(open_proxy: ProxyServer, visit: Visit):
    new = {"interaction_type": "posted_tweet", "content": "<i>Shipped</i>", "platform": "x"}
    assert open_proxy.client.post("/v1/memory/agents/helper/episodes", json=new).status_code == 201
    got = visit.get("/agents", params={"id": "helper"})
    assert got.headers["location"] == "/agents/helper"
    page = words(visit.page("/agents/helper"))
    assert "posted_tweet" in page and "<i>Shipped</i>" in page
    assert "No episodes" in visit.page("/agents/nobody")
