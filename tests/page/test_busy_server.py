"""The page of a server with twenty callers on the line and ten thousand stored conversations."""

import asyncio
import threading
import time
from collections.abc import Iterator

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from proxy.memory.session import Entry, Session, encode
from proxy.memory.stores.store import BlobWrite, Key
from tests.browser import PHONE, Complaints, launched
from tests.page.conftest import KEYED
from tests.page_visit import Visit, newest
from tests.peers.fake_upstream import DONE, END, HEAD, ROLE, FakeUpstream, chunk, delta
from tests.proxy_server import ProxyServer
from tests.waiting import until

CONVERSATIONS, CALLERS = 10_000, 20
_AT_ONCE = 50
FAST = 0.2
SCRIPT = (
    HEAD,
    0.2,
    chunk(ROLE + delta(content="Twelve euros.")),
    0.1,
    chunk(delta(content=" Anything else?") + delta(finish="stop") + DONE),
    END,
)
KINDS = {
    "desk-light": {"viewport": {"width": 1280, "height": 860}, "color_scheme": "light"},
    "desk-dark": {"viewport": {"width": 1280, "height": 860}, "color_scheme": "dark"},
    "phone-light": {"viewport": PHONE, "color_scheme": "light"},
    "phone-dark": {"viewport": PHONE, "color_scheme": "dark"},
}


async def fill(proxy: ProxyServer) -> None:
    """Conversations of some turns, each with a user of its own."""
    now = time.time()
    for start in range(0, CONVERSATIONS, _AT_ONCE):  # few, because an import has five seconds
        await asyncio.gather(*(store(proxy, number, now) for number in range(start, start + _AT_ONCE)))


async def store(proxy: ProxyServer, number: int, now: float) -> None:
    at = now - CONVERSATIONS + number / 2
    entries = tuple(
        Entry(
            role=("user", "assistant")[i % 2],
            turn=i // 2,
            content=f"Line {i} of conversation {number}, about the price of a ticket",
            recorded_at=at + i,
        )
        for i in range(12)
    )
    session = Session(entries=entries, user=f"user-{number}", created=at, updated=at + 12, next_turn=6)
    write = BlobWrite(encode(session), version=0, ttl=3600.0, background=True)
    assert await proxy.app.memory.store.replace(Key("default", f"stored-{number:05}"), write)


class Callers:
    """Twenty callers, each of whom speaks as soon as they were answered."""

    def __init__(self, proxy: ProxyServer) -> None:
        self._proxy = proxy
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._call, args=(i,), daemon=True) for i in range(CALLERS)]

    def __enter__(self) -> None:
        for thread in self._threads:
            thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(20)

    def _call(self, number: int) -> None:
        messages: list[dict[str, object]] = []
        while not self._over.is_set():
            messages.append({"role": "user", "content": f"What is the price of ticket {len(messages)}?"})
            self._proxy.chat(
                messages[-20:], session_id=f"live-{number}", user_id=f"caller-{number}", stream=True
            )
            messages.append({"role": "assistant", "content": "Twelve euros. Anything else?"})
            self._over.wait(1.0)


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxyServer]:
    folder = tmp_path_factory.mktemp("busy")
    config = folder / "config.yaml"
    config.write_text(
        KEYED.replace('"memory:"', f'"sqlite:{folder / "memory.db"}"').replace("keep: 50", "keep: 200")
    )
    with FakeUpstream() as upstream, ProxyServer(config, {"UPSTREAM_BASE_URL": upstream.url}) as proxy:
        upstream.script = lambda _: iter(SCRIPT)
        proxy.run(fill(proxy), within=120)
        with Callers(proxy):
            assert until(lambda: len(list(proxy.app.traces.newest("default"))) > CALLERS)
            yield proxy


PAGES = [
    "/",
    "/?q=price",
    "/turns/{newest}",
    "/conversations",
    "/conversations?page=300",
    "/conversations?q=stored-099",
    "/conversations/live-3",
    "/conversations/stored-09999",
    "/conversations/stored-09999/replay",
    "/users",
    "/users/caller-3",
    "/health",
    "/playground",
]


def test_each_page_is_made_in_a_fifth_of_a_second(busy: ProxyServer) -> None:
    """The fastest of several visits: what else the machine does is not the page's."""
    visit, slow = Visit(busy), {}
    for path in PAGES:
        times = []
        for _ in range(8):
            began = time.perf_counter()
            assert visit.get(path.format(newest=newest(busy))).status_code == 200
            times.append(time.perf_counter() - began)
        if min(times) > FAST:
            slow[path] = [round(each, 3) for each in times]
    assert slow == {}


@pytest.mark.parametrize("kind", KINDS)
def test_each_page_is_whole_and_accessible(busy: ProxyServer, kind: str) -> None:
    with launched() as browser:
        page = browser.new_page(**KINDS[kind])
        complaints = Complaints(page)
        for path in PAGES:
            page.goto(busy.root + path.format(newest=newest(busy)))
            expect(page.locator("h1")).to_be_visible()
            assert page.evaluate("document.documentElement.scrollWidth") <= page.viewport_size["width"], path
            found = Axe().run(page)
            assert found.violations_count == 0, f"{path}: {found.generate_report()}"
        assert complaints.heard == []


def test_the_live_page_keeps_up(busy: ProxyServer) -> None:
    with launched() as browser:
        page = browser.new_page()
        page.goto(busy.root)
        expect(page.get_by_text("Connected")).to_be_visible()
        expect(page.locator("#turns tbody tr")).to_have_count(100, timeout=60_000)
        before = page.locator("#turns tbody tr").first.get_attribute("data-turn")
        expect(page.locator("#turns tbody tr").first).not_to_have_attribute("data-turn", before or "")
        page.get_by_label("Search").fill("session:live-7")
        rows = page.locator("#turns tbody tr")
        expect(rows.locator("td:nth-child(2) a").filter(has_not_text="live-7")).to_have_count(0)
        texts = rows.locator("td:nth-child(2) a").all_text_contents()
        assert texts and set(texts) == {"live-7"}
