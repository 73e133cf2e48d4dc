"""The web page in a real browser: with a mouse and without one, with scripts and without."""

import json
import re
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, Page, expect

from tests.browser import PHONE, Complaints, launched
from tests.page.conftest import KEYED, KEYS
from tests.page.test_pages import HOSTILE
from tests.page_visit import newest, settle
from tests.peers.fake_upstream import DONE, END, HEAD, ROLE, FakeUpstream, answer, chunk, delta
from tests.proxy_server import ProxyServer

JOKE = json.loads((Path(__file__).parents[1] / "golden/agora_doc_request.json").read_text())["messages"]
DESK = {"width": 1280, "height": 860}
WIDTHS = [DESK, PHONE]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with launched() as browser:
        yield browser


@pytest.fixture
def opened(browser: Browser) -> Iterator[Callable[..., Page]]:
    contexts: list[BrowserContext] = []

    def open_page(**options) -> Page:
        contexts.append(browser.new_context(**options))
        page = contexts[-1].new_page()
        page.set_default_timeout(10_000)
        return page

    yield open_page
    for context in contexts:
        context.close()


LONG = "https://example.com/" + "x" * 600


@pytest.mark.parametrize("size", WIDTHS, ids=["desk", "phone"])
def test_what_has_no_spaces_makes_no_page_wide(serve, opened, size, tmp_path: Path):
    proxy = serve(KEYED.replace('"memory:"', f'"sqlite:{tmp_path / "memory.db"}"'))
    assert proxy.client.post("/v1/memory/users/ann/facts", json={"text": LONG}).status_code == 201
    told = {"interaction_type": "note", "content": LONG, "platform": "x"}
    assert proxy.client.post("/v1/memory/agents/bob/episodes", json=told).status_code == 201
    page = opened(viewport=size)
    proxy.chat(model=LONG, session_id=LONG[:200], user_id=LONG[:200])
    settle(proxy)
    for path in (
        "/users/ann",
        "/agents/bob",
        "/",
        "/health",
        "/users",
        "/conversations",
        f"/turns/{newest(proxy)}",
    ):
        page.goto(proxy.root + path)
        expect(page.locator("h1")).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= size["width"], path


@pytest.fixture
def spoken(open_proxy: ProxyServer) -> ProxyServer:
    """After two turns of one conversation, and one that failed."""
    for more in ([], [{"role": "user", "content": "Go on.", "turn_id": 9}]):
        open_proxy.chat([*JOKE, *more], channel="room-1", stream=True, user_id="ann", rtm_token="hidden")
    settle(open_proxy, 2)
    return open_proxy


def pages_of(proxy: ProxyServer) -> list[str]:
    return [
        "/",
        "/conversations",
        "/conversations/room-1",
        "/conversations/room-1/edit/1",
        "/conversations/room-1/delete",
        f"/turns/{newest(proxy)}",
        "/playground",
        "/users",
        "/users/ann",
        "/users/ann/forget",
        "/agents/nobody",
        "/health",
        "/turns/none",
    ]


def test_at_no_width_between_is_a_page_cut_off(spoken: ProxyServer, opened) -> None:
    page = opened()
    for path in pages_of(spoken):
        page.goto(spoken.root + path)
        for width in (360, 561, 768, 801, 901, 1024):
            page.set_viewport_size({"width": width, "height": 800})
            assert page.evaluate("document.documentElement.scrollWidth") <= width, f"{path} at {width}"


# Colours are the same on a phone.
@pytest.mark.parametrize(
    ("scheme", "size"), [("light", DESK), ("dark", DESK), ("light", PHONE)], ids=["light", "dark", "phone"]
)
def test_each_page_is_whole_accessible_and_fits(spoken: ProxyServer, opened, scheme: str, size):
    page = opened(color_scheme=scheme, viewport=size)
    complaints = Complaints(page)
    for path in pages_of(spoken):
        page.goto(spoken.root + path)
        expect(page.locator("h1")).to_be_visible()
        wide = page.evaluate("document.documentElement.scrollWidth")
        assert wide <= size["width"], path
        found = Axe().run(page)
        assert found.violations_count == 0, f"{path}: {found.generate_report()}"
    assert [said for said in complaints.heard if "404" not in said] == []


def test_turns_appear_as_they_happen_and_change_their_state(
    open_proxy: ProxyServer, opened, upstream: FakeUpstream
):
    upstream.says(HEAD, chunk(ROLE + delta(content="Well")), 1.5, chunk(delta(finish="stop") + DONE), END)
    page = opened()
    complaints = Complaints(page)
    page.goto(open_proxy.root)
    expect(page.get_by_text("Connected")).to_be_visible()
    expect(page.get_by_text("No turns yet")).to_be_visible()
    call = threading.Thread(
        target=open_proxy.chat, args=(JOKE,), kwargs={"channel": "room-9", "stream": True}
    )
    call.start()
    row = page.locator("#turns tr", has_text="room-9")
    expect(row.locator(".state")).to_have_text("streaming")
    expect(row.get_by_text("Well")).to_be_visible()
    expect(page.get_by_text("No turns yet")).to_be_hidden()
    call.join()
    expect(row.locator(".state")).to_have_text("done")
    expect(page.locator("#turns tr", has_text="room-9")).to_have_count(1)
    row.get_by_role("link", name="Details of this turn").click()
    expect(page.get_by_role("heading", name="Where the time went")).to_be_visible()
    assert complaints.heard == []


def test_a_row_that_has_the_focus_keeps_it(open_proxy: ProxyServer, opened, upstream: FakeUpstream):
    upstream.says(HEAD, chunk(ROLE + delta(content="Well")), 1.5, chunk(delta(finish="stop") + DONE), END)
    page = opened()
    page.goto(open_proxy.root)
    expect(page.get_by_text("Connected")).to_be_visible()
    call = threading.Thread(
        target=open_proxy.chat, args=(JOKE,), kwargs={"channel": "room-9", "stream": True}
    )
    call.start()
    page.get_by_role("link", name="room-9").focus()
    call.join()
    expect(page.locator("#turns .state")).to_have_text("done")
    assert page.evaluate("document.activeElement.textContent") == "room-9"


def test_the_newest_turn_stands_on_top_and_who_is_forgotten_leaves(serve, opened):
    proxy = serve(KEYED.replace("keep: 50", "keep: 5"))
    for number in range(12):
        proxy.chat(session_id=f"s{number}", user_id="ann" if number % 2 else "bob")
    settle(proxy, 5)
    page = opened()
    complaints = Complaints(page)
    page.goto(proxy.root)
    expect(page.get_by_text("Connected")).to_be_visible()
    rooms = page.locator("#turns tbody td.cut:nth-child(2) a")
    proxy.chat(session_id="s12", user_id="bob")
    expect(rooms).to_have_text([f"s{number}" for number in reversed(range(13))])
    expect(page.get_by_role("link", name="Details of this turn")).to_have_count(5)
    proxy.client.delete("/v1/memory/users/ann")
    expect(rooms).to_have_text([f"s{number}" for number in range(12, -1, -2)])
    assert complaints.heard == []


def test_the_live_page_is_searched_while_one_types(open_proxy: ProxyServer, opened):
    for words, user in (("What is the price?", "ann"), ("Good morning", "bob")):
        open_proxy.chat([{"role": "user", "content": words}], session_id=f"of-{user}", user_id=user)
    settle(open_proxy, 2)
    page = opened()
    complaints = Complaints(page)
    page.goto(open_proxy.root)
    rooms = page.locator("#turns tbody td:nth-child(2) a")
    expect(rooms).to_have_text(["of-bob", "of-ann"])
    page.get_by_label("Search").fill("price")
    expect(rooms).to_have_text(["of-ann"])
    expect(page).to_have_url(f"{open_proxy.root}/live?q=price")
    open_proxy.chat([{"role": "user", "content": "Too high a price!"}], session_id="later", user_id="ann")
    expect(rooms).to_have_text(["later", "of-ann"])
    page.get_by_label("State").select_option("failed")
    expect(page.get_by_text("No turn matches these filters")).to_be_visible()
    page.reload()
    expect(page.get_by_label("Search")).to_have_value("price")
    page.get_by_role("link", name="Show all").click()
    expect(rooms).to_have_count(3)
    assert complaints.heard == []


def test_rows_do_not_move_while_the_page_is_paused_or_under_the_mouse(open_proxy: ProxyServer, opened):
    def say(session: str) -> None:
        open_proxy.chat([{"role": "user", "content": "Hi"}], session_id=session)

    say("first")
    page = opened()
    complaints = Complaints(page)
    page.goto(open_proxy.root)
    rooms = page.locator("#turns tbody td:nth-child(2) a")
    expect(page.get_by_text("Connected")).to_be_visible()
    expect(rooms).to_have_text(["first"])
    page.get_by_role("button", name="Pause").click()
    say("second")
    expect(page.get_by_text("Paused · 1 newer")).to_be_visible()
    expect(rooms).to_have_text(["first"])
    page.get_by_role("button", name="Resume").click()
    expect(rooms).to_have_text(["second", "first"])
    rooms.first.hover()
    say("third")
    expect(page.get_by_text("Connected · 1 newer")).to_be_visible()
    say("fourth")
    expect(page.get_by_text("Connected · 2 newer")).to_be_visible()
    expect(rooms).to_have_text(["second", "first"])
    page.get_by_role("heading", name="Live").hover()
    expect(rooms).to_have_text(["fourth", "third", "second", "first"])
    assert complaints.heard == []


def test_a_turn_stands_there_before_its_model_has_answered(
    open_proxy: ProxyServer, opened, upstream: FakeUpstream
):
    upstream.says(
        HEAD, 1.0, chunk(ROLE + delta(content="Well")), 1.0, chunk(delta(finish="stop") + DONE), END
    )
    page = opened()
    page.goto(open_proxy.root)
    expect(page.get_by_text("Connected")).to_be_visible()
    call = threading.Thread(
        target=open_proxy.chat,
        args=([{"role": "user", "content": "Are you there?"}],),
        kwargs={"session_id": "room-9", "stream": True, "model": "slow-model"},
    )
    call.start()
    row = page.locator("#turns tr", has_text="room-9")
    expect(row.locator(".state")).to_have_text("waiting")
    expect(row.get_by_text("slow-model")).to_be_visible()
    expect(row.get_by_text("Are you there?")).to_be_visible()
    expect(row.locator(".state")).to_have_text("streaming")
    expect(row.locator(".state")).to_have_text("done")
    call.join()


def test_a_prompt_is_copied_as_curl(spoken: ProxyServer, opened):
    page = opened(permissions=["clipboard-read", "clipboard-write"])
    page.goto(f"{spoken.root}/turns/{newest(spoken)}")
    page.get_by_text("As curl").click()
    page.get_by_role("button", name="Copy").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied.startswith('curl -sN "$UPSTREAM_BASE_URL/chat/completions"') and "hidden" not in copied
    # As a shell reads it, the body is what the upstream got.
    script = copied.replace("curl -sN", "printf '%s\\0'")
    words = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True).stdout.split(
        "\0"
    )
    body = json.loads(words[words.index("-d") + 1])
    assert body["messages"][-1]["content"] == "Go on."


def test_the_live_page_comes_back_when_the_server_does(serve, opened, tmp_path: Path):
    first = serve(KEYED)
    page = opened()
    page.goto(first.root)
    expect(page.get_by_text("Connected")).to_be_visible()
    first.end_within(1)
    first.app.drain()
    expect(page.get_by_text("The server does not answer; trying again")).to_be_visible()


def test_a_call_is_followed_while_it_goes_on(spoken: ProxyServer, opened):
    page = opened()
    complaints = Complaints(page)
    page.goto(f"{spoken.root}/conversations/room-1")
    tracks = page.locator(".tracks")
    assert tracks.evaluate(
        "each => each.scrollLeft + each.clientWidth >= each.scrollWidth - 1 || each.scrollLeft === 0"
    )
    spoken.chat(
        [*JOKE, {"role": "user", "content": "And the price of it?", "turn_id": 10}],
        channel="room-1",
        stream=True,
    )
    newest_line = page.locator(".line", has_text="And the price of it?")
    expect(newest_line).to_be_in_viewport()
    newest_line.get_by_role("link", name="Turn").click()
    expect(page.locator(".line.user", has_text="And the price of it?")).to_be_visible()
    page.get_by_role("link", name="Turn before").click()
    expect(page.locator(".line.user", has_text="Go on.")).to_be_visible()
    assert complaints.heard == []


def test_what_was_not_heard_is_struck_out(spoken: ProxyServer, opened):
    page = opened()
    page.goto(f"{spoken.root}/conversations/room-1")
    lost = page.locator(".line del").first
    assert "win an award?" in lost.inner_text()
    assert "line-through" in lost.evaluate("each => getComputedStyle(each).textDecorationLine")


def test_faults_show_while_one_types(open_proxy: ProxyServer, opened):
    page = opened()
    complaints = Complaints(page)
    page.goto(f"{open_proxy.root}/playground")
    yaml = page.get_by_label("Filters", exact=True)
    yaml.fill("request:\n  - drop_messages: {source: [silence]}\n")
    expect(page.get_by_text("did you mean 'sources'")).to_be_visible()
    expect(page.locator("#typing")).to_have_text("There are errors")
    yaml.fill("request:\n  - drop_messages: {sources: [command]}\n")
    expect(page.locator("#tried .tally").first).to_have_text("1 removed")
    expect(page.locator("#typing")).to_have_text("Up to date")
    expect(yaml).to_have_value("request:\n  - drop_messages: {sources: [command]}\n")
    page.get_by_label("Voice platform").select_option("Vapi")
    expect(page.get_by_label("Request", exact=True)).to_have_value(re.compile("Book a table"))
    assert complaints.heard == []


def test_a_dead_memory_says_so_and_the_rest_goes_on(serve, opened, upstream: FakeUpstream):
    proxy = serve(KEYED.replace('"memory:"', "redis://127.0.0.1:1"))
    page = opened()
    proxy.chat(JOKE, channel="room-1")
    page.goto(f"{proxy.root}/conversations")
    expect(page.get_by_role("heading", name="Memory is unavailable")).to_be_visible()
    page.get_by_role("link", name="Live", exact=True).click()
    expect(page.locator("#turns .state.degraded")).to_be_visible()
    page.get_by_role("link", name="Details of this turn").click()
    expect(page.get_by_text("Degraded", exact=True)).to_be_visible()
    page.get_by_role("link", name="Health").click()
    expect(page.locator(".warn").first).to_be_visible()


def test_a_thousand_sessions_can_be_gone_through(open_proxy: ProxyServer, opened):
    for i in range(1000):
        open_proxy.client.put(f"/v1/memory/sessions/s{i:04}", json={"contents": []})
    page = opened()
    page.goto(f"{open_proxy.root}/conversations")
    for first in ("s0999", "s0969", "s0939"):
        expect(page.locator("tbody a").first).to_have_text(first)
        page.get_by_role("link", name="Older").click()
    page.get_by_role("link", name="Newer").click()
    expect(page.locator("tbody a").first).to_have_text("s0939")
    page.get_by_placeholder("A session's name", exact=True).fill("s0777")
    page.get_by_role("button", name="Open").click()
    expect(page.get_by_role("heading", name="s0777")).to_be_visible()


def test_no_hostile_text_runs(open_proxy: ProxyServer, opened, upstream: FakeUpstream):
    upstream.says(HEAD, chunk(ROLE + delta(content=HOSTILE) + delta(finish="stop") + DONE), END)
    page = opened()
    complaints = Complaints(page)
    page.goto(open_proxy.root)
    expect(page.get_by_text("Connected")).to_be_visible()
    said = {"source": HOSTILE, "user": HOSTILE, "interrupted": True, "original": f"Well {HOSTILE}"}
    messages = [
        {"role": "user", "content": HOSTILE, "name": HOSTILE, "metadata": {"user": HOSTILE}},
        {"role": "assistant", "content": "Well", "metadata": said},
        {"role": "user", "content": HOSTILE},
    ]
    name = HOSTILE.replace("\u202e", "")
    open_proxy.chat(messages, model=HOSTILE, stream=True, session_id=name, user_id=name, **{HOSTILE: 1})
    settle(open_proxy)
    row = page.locator("#turns tbody tr")
    expect(row.locator(".state")).to_have_text("done")
    row.locator("td a").first.click()
    expect(page.locator(".line")).to_have_count(4)
    page.goto(f"{open_proxy.root}/turns/{newest(open_proxy)}")
    page.goto(f"{open_proxy.root}/users")
    page.goto(f"{open_proxy.root}/playground")
    request = json.dumps({"model": HOSTILE, "messages": messages})
    page.get_by_label("Request", exact=True).fill(request)
    page.get_by_label("Filters", exact=True).fill(f"request: [{json.dumps(HOSTILE)}]")
    expect(page.locator("#tried .fault")).to_be_visible()
    page.get_by_label("Filters", exact=True).fill("request: [repair_history, restore_interrupted]")
    expect(page.locator("#tried .steps")).to_be_visible()
    page.wait_for_timeout(300)
    assert complaints.heard == []
    assert page.evaluate("document.querySelectorAll('img').length") == 0


def test_the_policy_stops_a_script_that_got_in_all_the_same(open_proxy: ProxyServer, opened):
    page = opened()
    complaints = Complaints(page)
    page.goto(open_proxy.root)
    page.evaluate("""() => {
        const script = document.createElement("script");
        script.textContent = "window.ran = 1";
        document.body.append(script);
    }""")
    assert page.evaluate("window.ran") is None
    assert any("Content Security Policy" in said for said in complaints.heard)


# --- without a mouse


def test_everything_can_be_done_by_keyboard(serve, opened):
    proxy = serve(KEYED, TURNKEEPER_KEYS=KEYS)
    proxy.chat(JOKE, channel="room-1", stream=True, headers={"authorization": "Bearer secret-1"})
    settle(proxy)
    page = opened()
    page.goto(proxy.root)
    expect(page.get_by_label("Key")).to_be_focused()
    page.keyboard.type("secret-1")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Live")).to_be_visible()
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="To the content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()
    go(page, "room-1")
    expect(page.get_by_role("heading", name="As the caller heard it")).to_be_visible()
    go(page, "Edit message 2")
    expect(page.get_by_role("heading", name="Edit what was said")).to_be_visible()
    until(page, "textarea")
    page.keyboard.press("Control+A")
    page.keyboard.type("Another joke?")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.locator(".words", has_text="Another joke?")).to_be_visible()
    go(page, "Delete this conversation")
    expect(page.get_by_role("heading", name="Delete this conversation?")).to_be_visible()
    until(page, "button.danger")
    page.keyboard.press("Enter")
    expect(page.get_by_text("No conversation is stored yet")).to_be_visible()
    until(page, "button.plain")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()


def go(page: Page, name: str) -> None:
    """Presses Tab until a link of this name has the focus, and follows it."""
    for _ in range(60):
        page.keyboard.press("Tab")
        if " ".join(page.evaluate("document.activeElement.textContent").split()) == name:
            page.keyboard.press("Enter")
            return
    pytest.fail(f"no way to {name} by keyboard")


def until(page: Page, selector: str) -> None:
    """Presses Tab until an element has the focus."""
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate("each => document.activeElement.matches(each)", selector):
            return
    pytest.fail(f"no way to {selector} by keyboard")


def test_what_has_the_focus_can_be_seen(spoken: ProxyServer, opened):
    page = opened()
    page.goto(f"{spoken.root}/turns/{newest(spoken)}")
    for _ in range(12):
        page.keyboard.press("Tab")
        outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline != "none", page.evaluate("document.activeElement.outerHTML")[:200]


# --- without scripts


def test_without_scripts_everything_is_there_but_the_moment(spoken: ProxyServer, opened):
    page = opened(java_script_enabled=False)
    for path in pages_of(spoken):
        page.goto(spoken.root + path)
        expect(page.locator("h1")).to_be_visible()
    page.goto(f"{spoken.root}/playground")
    page.get_by_label("Filters", exact=True).fill("request: [nothing_of_ours]")
    page.get_by_role("button", name="Run").click()
    expect(page.get_by_text("no filter named")).to_be_visible()
    page.get_by_label("Voice platform").select_option("Hume")
    page.get_by_role("button", name="Load").click()
    expect(page.locator("#tried .steps")).to_be_visible()
    page.goto(f"{spoken.root}/conversations/room-1/delete")
    page.get_by_role("button", name="Delete").click()
    expect(page.get_by_text("No conversation is stored yet")).to_be_visible()


def test_a_failure_is_told_on_the_page_of_its_turn(open_proxy: ProxyServer, opened, upstream: FakeUpstream):
    upstream.says(*answer({"error": {"message": "no"}}, status=500))
    open_proxy.chat(JOKE, channel="room-1")
    settle(open_proxy)
    page = opened()
    page.goto(open_proxy.root)
    page.get_by_role("link", name="Details of this turn").click()
    expect(page.get_by_role("alert")).to_have_text("The upstream answered 500.")
