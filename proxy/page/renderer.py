"""How a page is written: templates that escape whatever they are given, and headers that let nothing in."""

from collections.abc import Mapping
from datetime import UTC, datetime
from hashlib import sha256
from importlib.resources import files
from typing import Any, Final
from urllib.parse import quote

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.responses import Response

from proxy.page.viewer import Viewer
from proxy.version import VERSION

_PACKAGE: Final = "proxy.page"
_ASSETS: Final = {"style.css": "text/css", "page.js": "text/javascript", "icon.svg": "image/svg+xml"}
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_MILLISECOND, _SECOND = 0.001, 1.0


HEADERS: Final = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


class Renderer:
    """All templates and assets. A text that a template is given stays a text.

    ``place`` says at the foot of each page which of several processes this is.
    """

    def __init__(self, place: str = "") -> None:
        folder = files(_PACKAGE) / "assets"
        self._assets = {name: (folder / name).read_bytes() for name in _ASSETS}
        self._environment = Environment(
            loader=PackageLoader(_PACKAGE),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        own = {"took": took, "iso": iso, "clock": clock, "step": step, "tojson_text": as_json}
        self._environment.filters |= own
        self._environment.tests["step"] = is_step
        self._environment.globals |= {"asset": self._address, "version": VERSION, "place": place}

    def text(self, template: str, **values: Any) -> str:
        """A template filled in."""
        return self._environment.get_template(template).render(**values)

    def page(self, template: str, viewer: Viewer, *, status: int = 200, **values: Any) -> Response:
        """A whole page."""
        text = self.text(template, viewer=viewer, **values)
        # Half a character, as a transcript cut inside an emoji has, is no UTF-8.
        return Response(text.encode("utf-8", "replace"), status, HEADERS, "text/html")

    def asset(self, name: str) -> Response | None:
        """A file that pages refer to; its address changes whenever it does."""
        if name not in self._assets:
            return None
        cached: Mapping[str, str] = {**HEADERS, "cache-control": "public, max-age=31536000, immutable"}
        return Response(self._assets[name], headers=cached, media_type=_ASSETS[name])

    def _address(self, name: str) -> str:
        return f"/assets/{name}?v={sha256(self._assets[name]).hexdigest()[:12]}"


def took(seconds: float | None) -> str:
    """A length of time with the unit that suits it: ``84 µs``, ``12.3 ms``, ``1.42 s``."""
    if seconds is None:
        return "-"
    if abs(seconds) < _MILLISECOND:
        return f"{seconds * 1e6:.0f} µs"
    if abs(seconds) < _SECOND:
        return f"{seconds * 1e3:.{1 if seconds < 0.1 else 0}f} ms"  # noqa: PLR2004 - three digits either way
    return f"{seconds:.2f} s"


def step(name: str) -> str:
    """A name as one step of a path, whatever is in it."""
    return quote(name, safe="", errors="replace")


def is_step(name: str) -> bool:
    """Whether a name can be a step of a path; browsers take these two, however they are written, for ways."""
    return name not in {".", ".."}


def as_json(value: Any) -> str:
    """A value as JSON writes it, as a text that is still to be escaped."""
    return msgspec.json.encode(value).decode("utf-8", "replace")


def iso(seconds: float) -> str:
    """A moment as machines read it; the epoch for one beyond all calendars."""
    return _moment(seconds).isoformat(timespec="milliseconds")


def clock(seconds: float) -> str:
    """A moment as people read it, in UTC until a script puts it into their own time."""
    return _moment(seconds).strftime("%Y-%m-%d %H:%M:%S")


def _moment(seconds: float) -> datetime:
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, OSError, ValueError):
        return datetime.fromtimestamp(0, UTC)
