"""The web page as a browser without scripts sees it."""

import re
import time
from html.parser import HTMLParser
from typing import Any

import httpx2

from tests.proxy_server import ProxyServer

TOKEN = re.compile(r'name="token" value="([0-9a-f]+)"')


class Visit:
    """One browser: it keeps its cookie, and sends forms with the token of the page that they stand on."""

    def __init__(self, proxy: ProxyServer) -> None:
        self.client = httpx2.Client(base_url=proxy.root, timeout=60, verify=False)

    def __del__(self) -> None:
        self.client.close()

    def get(self, path: str, **call: Any) -> httpx2.Response:
        return self.client.get(path, **call)

    def page(self, path: str) -> str:
        got = self.get(path)
        assert got.status_code == 200, got.text
        return got.text

    def post(self, path: str, *, seen: str | None = None, **fields: str) -> httpx2.Response:
        """Sends a form as the page at ``seen`` has it; without a page, with the fields alone."""
        token = {"token": self.token(seen)} if seen else {}
        return self.client.post(path, data=token | fields)

    def token(self, path: str) -> str:
        found = TOKEN.search(self.get(path).text)
        assert found
        return found[1]


class Markup(HTMLParser):
    """What stands in a page: its elements with their attributes, and its text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += f"{data} "

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


def words(html: str) -> str:
    """A page's text, its white space as one reads it."""
    return " ".join(Markup(html).text.split())


def newest(proxy: ProxyServer, tenant: str = "default") -> str:
    """The id of the newest turn."""
    return next(proxy.app.traces.newest(tenant)).report.id


def settle(proxy: ProxyServer, turns: int = 1) -> None:
    """Waits until turns are in the ring, and written."""
    end = time.monotonic() + 5
    while len(proxy.app.traces._traces) < turns and time.monotonic() < end:
        time.sleep(0.005)
    proxy.run(proxy.app.memory.recorder.drain())
