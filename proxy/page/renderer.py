"""Renders templates, which escape all values, with headers that forbid foreign content."""

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

HEADERS: Final = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
_PACKAGE: Final = "proxy.page"
_ASSETS: Final = {"style.css": "text/css", "page.js": "text/javascript", "icon.svg": "image/svg+xml"}
_MILLISECOND, _SECOND = 0.001, 1.0
_PLACES: Final = {
    "header": "the headers",
    "query": "the query",
    "body": "the body",
    "message": "the user's newest message",
}


class Renderer:
    """The page's templates and assets; ``process_name`` is shown at the foot of each page."""

    def __init__(self, process_name: str = "") -> None:
        folder = files(_PACKAGE) / "assets"
        self._assets = {name: (folder / name).read_bytes() for name in _ASSETS}
        self._environment = Environment(
            loader=PackageLoader(_PACKAGE),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        own = {
            "took": took,
            "ms": milliseconds,
            "place": place_text,
            "lasting": lasting,
            "turn": turn_url,
            "iso": iso,
            "clock": clock,
            "step": step,
            "tojson_text": as_json,
        }
        self._environment.filters |= own
        self._environment.tests["step"] = is_step
        self._environment.globals |= {"asset": self._asset_url, "version": VERSION}
        self._environment.globals["process_name"] = process_name

    def compile(self, *templates: str) -> None:
        """Compiles templates in advance; each is compiled only once."""
        for template in templates:
            self._environment.get_template(template)

    def text(self, template: str, **values: Any) -> str:
        """Renders a template to HTML."""
        return self._environment.get_template(template).render(**values)

    def page(self, template: str, viewer: Viewer, *, status: int = 200, **values: Any) -> Response:
        """Renders a whole page as a response."""
        text = self.text(template, viewer=viewer, **values)
        # A transcript that is cut inside an emoji has a lone surrogate, which UTF-8 cannot encode.
        return Response(text.encode("utf-8", "replace"), status, HEADERS, "text/html")

    def asset(self, name: str) -> Response | None:
        """Returns an asset, or ``None``; it is cached for a year, as its URL changes with its content."""
        if name not in self._assets:
            return None
        headers: Mapping[str, str] = {**HEADERS, "cache-control": "public, max-age=31536000, immutable"}
        return Response(self._assets[name], headers=headers, media_type=_ASSETS[name])

    def _asset_url(self, name: str) -> str:
        return f"/assets/{name}?v={sha256(self._assets[name]).hexdigest()[:12]}"


def took(seconds: float | None) -> str:
    """Formats a duration in a fitting unit: ``84 µs``, ``12.3 ms``, ``1.42 s``; ``None`` as a dash."""
    if seconds is None:
        return "\N{EN DASH}"
    if abs(seconds) < _MILLISECOND:
        return f"{seconds * 1e6:.0f} µs"
    if abs(seconds) < _SECOND:
        return f"{seconds * 1e3:.{1 if seconds < 0.1 else 0}f} ms"  # noqa: PLR2004 - three digits either way
    return f"{seconds:.2f} s"


def milliseconds(seconds: float | None) -> str:
    """Formats durations to be compared, all in one unit: ``0.084 ms``, ``12.3 ms``, ``1,420 ms``."""
    if seconds is None:
        return "\N{EN DASH}"
    size = abs(seconds * 1e3)
    return f"{seconds * 1e3:,.{sum(size < bound for bound in (0.1, 10, 100))}f} ms"


def place_text(spelling: str) -> str:
    """Puts an id place into words: ``session_id in the body`` for ``body:session_id``."""
    source, _, name = spelling.partition(":")
    where = _PLACES.get(source)
    return f"{name} in {where}" if name and where else spelling


def lasting(seconds: float) -> str:
    """Formats a duration in its two largest units: ``2.5 s``, ``3 min 20 s``, ``2 h 5 min``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{seconds:.1f} s"


def step(name: str) -> str:
    """Quotes a name as one step of a path, slashes included."""
    return quote(name, safe="", errors="replace")


def turn_url(id: str, session: str | None, at: float) -> str:  # noqa: A002 - an id is called an id
    """The URL of a turn's page. The session and time lead to its conversation once it is no longer kept."""
    return f"/turns/{step(id)}" + ("" if session is None else f"?session={step(session)}&at={at:.3f}")


def is_step(name: str) -> bool:
    """Whether a name can be a step of a path; browsers resolve ``.`` and ``..``, even quoted ones."""
    return name not in {".", ".."}


def as_json(value: Any) -> str:
    """Encodes a value as JSON, which is not yet escaped for HTML."""
    return msgspec.json.encode(value).decode("utf-8", "replace")


def iso(seconds: float) -> str:
    """Formats a time, in seconds since 1970, as ISO 8601; one that is out of range becomes the epoch."""
    return _moment(seconds).isoformat(timespec="milliseconds")


def clock(seconds: float) -> str:
    """Formats a time, in seconds since 1970, for readers: in UTC, until a script converts it."""
    return _moment(seconds).strftime("%Y-%m-%d %H:%M:%S")


def _moment(seconds: float) -> datetime:
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, OSError, ValueError):
        return datetime.fromtimestamp(0, UTC)
