"""Pictures of the web page, taken anew: ``python -m docs.pictures``. It needs chromium."""

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from playwright.sync_api import Browser, Page

from tests.browser import PHONE, launched
from tests.peers.fake_upstream import DONE, END, HEAD, ROLE, FakeUpstream, Step, chunk, delta, event
from tests.proxy_server import ProxyServer

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "docs" / "pages"
DESK = {"width": 1180, "height": 760}
ANSWERS = (
    "Your order 4711 left our warehouse this morning and should arrive on Thursday before noon.",
    "Yes, I can change the delivery address. Which street and number should it go to?",
    "Done. It will go to 12 Harbour Lane. Is there anything else that I can do for you today?",
    "The express option costs nine euros and ninety cents, and it would arrive tomorrow before ten.",
    "You are welcome. Have a good day!",
)
QUESTIONS = (
    "Hi, where is my order? The number is 4711.",
    "Could you send it to another address instead?",
    "12 Harbour Lane, please.",
    "And what would express delivery cost?",
    "Then I leave it as it is, thank you.",
)
GREETING = "Hello, this is the shop. How can I help?"
CUT = 1
"""The answer that is interrupted, and after how many words, of which a second takes three."""
HEARD = 7


def script(text: str) -> Iterator[Step]:
    """An answer that takes as long as a model does."""
    yield from (HEAD, 0.31, chunk(ROLE))
    for number, word in enumerate(text.split()):
        yield chunk(delta(content=f" {word}" if number else word))
        yield 0.02
    usage = {"prompt_tokens": 168, "completion_tokens": 17, "prompt_tokens_details": {"cached_tokens": 128}}
    yield chunk(delta(finish="stop") + event(choices=[], usage=usage) + DONE)
    yield END


class Caller(NamedTuple):
    """A user in a channel: how often they speak, and how many seconds lie between."""

    channel: str
    user: str
    turns: int
    pause: float


def call(proxy: ProxyServer, upstream: FakeUpstream, caller: Caller) -> str:
    """A call of a few turns, in which one answer is interrupted; the newest turn's id."""
    messages: list[dict[str, object]] = [
        {"role": "system", "content": "You are the voice of a shop. Be brief."},
        line("assistant", GREETING, 1, source="greeting"),
    ]
    time.sleep(caller.pause)
    for number in range(caller.turns):
        messages.append(line("user", QUESTIONS[number], number + 2, source="asr", user=caller.user))
        answer = ANSWERS[number]
        upstream.script = lambda _, answer=answer: script(answer)
        proxy.chat(messages, stream=True, channel=caller.channel, model="gpt-4o-mini", campaign="spring")
        if number == CUT:
            time.sleep(caller.pause / 2)
            heard = " ".join(answer.split()[:HEARD])
            marks = {"interrupted": True, "original": answer, "interrupt_timestamp": milliseconds()}
            messages.append(line("assistant", heard, number + 2, source="llm", **marks))
        else:
            time.sleep(caller.pause)
            messages.append(line("assistant", answer, number + 2, source="llm"))
    proxy.run(proxy.app.memory.recorder.drain())
    return next(proxy.app.traces.newest("default", caller.channel)).report.id


def line(role: str, content: str, turn: int, **metadata: object) -> dict[str, object]:
    """A message as Agora sends it."""
    marks = {"turn_id": turn, "timestamp": milliseconds(), "metadata": metadata}
    return {"role": role, "content": content, **marks}


def milliseconds() -> int:
    """Now, as Agora writes it."""
    return int(time.time() * 1000)


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


def run_again(page: Page) -> None:
    """Runs the turn that is open again with another model."""
    page.get_by_text("Choose a model").click()
    page.get_by_role("textbox", name="Model").fill("gpt-4.1-mini")
    page.get_by_role("button", name="Run again").click()
    page.get_by_text("first answer").wait_for()


def main() -> None:
    """All pictures that the documentation shows."""
    PAGES.mkdir(exist_ok=True)
    config = ROOT / "config" / "agora.yaml"
    with FakeUpstream() as upstream, launched() as browser, TemporaryDirectory() as folder:
        environ = {"MEMORY_URL": f"sqlite:{folder}/memory.db", "UPSTREAM_BASE_URL": upstream.url}
        with ProxyServer(config, environ) as proxy:
            for number, user in enumerate(("bob", "cleo", "dan")):
                call(proxy, upstream, Caller(f"support-{4708 + number}", user, turns=number + 1, pause=0.3))
            turn = call(proxy, upstream, Caller("support-4711", "ann", turns=len(QUESTIONS), pause=5.5))
            pages = {
                "live": "/",
                "conversation": "/conversations/support-4711",
                "turn": f"/turns/{turn}",
                "playground": "/playground",
            }
            shown = {"light": pages, "dark": ("turn",), "phone": ("conversation",)}
            for kind, page in views(browser).items():
                for name in shown[kind]:
                    take(page, proxy.root + pages[name], f"{name}-{kind}")
            page = browser.new_page(viewport=DESK)
            page.goto(f"{proxy.root}/turns/{turn}")
            upstream.script = lambda _: script("Good, it stays as it is. Have a nice day!")
            run_again(page)
            page.locator("section", has=page.locator("#again")).screenshot(path=PAGES / "run-again-light.png")


if __name__ == "__main__":
    main()
