"""Pictures of the web page, taken anew: ``python -m docs.pictures``. It needs chromium."""

import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from playwright.sync_api import Browser, Page

from tests.browser import PHONE, launched
from tests.peers.fake_upstream import DONE, END, HEAD, ROLE, FakeUpstream, Step, chunk, delta, event
from tests.proxy_server import ProxyServer

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "docs" / "pages"
DESK = {"width": 1180, "height": 760}
STORY = "Once upon a time in a land far away, there lived a brave knight who fought dragons."
JOKE = json.loads((ROOT / "tests/golden/agora_doc_request.json").read_text())["messages"]


def script() -> Iterator[Step]:
    """An answer that takes as long as a model does."""
    yield from (HEAD, 0.31, chunk(ROLE))
    for word in STORY.split():
        yield chunk(delta(content=f"{word} "))
        yield 0.02
    usage = {"prompt_tokens": 168, "completion_tokens": 17, "prompt_tokens_details": {"cached_tokens": 128}}
    yield chunk(delta(finish="stop") + event(choices=[], usage=usage) + DONE)
    yield END


def talk(proxy: ProxyServer) -> str:
    """A conversation of a few turns; the newest turn's id."""
    messages = list(JOKE)
    for number, words in enumerate(("And then?", "Did he win?", "Was there a princess?"), 5):
        marks = {"turn_id": number, "timestamp": time.time()}
        messages.append(
            {"role": "user", "content": words, **marks, "metadata": {"source": "asr", "user": "ann"}}
        )
        proxy.chat(messages, stream=True, channel="support-4711", model="gpt-4o-mini", campaign="spring")
        cut = {"source": "llm", "interrupted": True, "original": STORY}
        messages.append({"role": "assistant", "content": "Once upon a time", **marks, "metadata": cut})
    proxy.run(proxy.app.memory.recorder.drain())
    return next(proxy.app.traces.newest("default")).report.id


def take(page: Page, address: str, picture: str) -> None:
    """One picture; where the page is no phone's, of all of it."""
    page.goto(address)
    page.wait_for_timeout(400)
    page.screenshot(path=PAGES / f"{picture}.png", full_page=page.viewport_size != PHONE)


def views(browser: Browser) -> Mapping[str, Page]:
    """A browser's windows by what is special about them."""
    return {
        "light": browser.new_page(viewport=DESK),
        "dark": browser.new_page(viewport=DESK, color_scheme="dark"),
        "phone": browser.new_page(viewport=PHONE),
    }


def main() -> None:
    """All pictures: each page in the light, in the dark and on a phone."""
    PAGES.mkdir(exist_ok=True)
    config = ROOT / "config" / "agora.yaml"
    with FakeUpstream() as upstream, launched() as browser:
        upstream.script = lambda _: script()
        environ = {"MEMORY_URL": "memory:", "UPSTREAM_BASE_URL": upstream.url}
        with ProxyServer(config, environ) as proxy:
            turn = talk(proxy)
            pages = {
                "live": "/",
                "conversation": "/conversations/support-4711",
                "turn": f"/turns/{turn}",
                "playground": "/playground",
                "people": "/users",
                "health": "/health",
            }
            for kind, page in views(browser).items():
                for name, path in pages.items():
                    take(page, proxy.root + path, f"{name}-{kind}")


if __name__ == "__main__":
    main()
