"""``tap``: the turns of a running server, as they go by."""

import http.client
import os
import sys
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Annotated
from urllib.parse import urlsplit

import msgspec
import typer

from proxy.answer.sse import data_of
from proxy.commands.terminal import Json, reported_errors, write_lines
from proxy.errors import ConfigError
from proxy.observe.feed import Event
from proxy.trial import render

_PATH = "/v1/turns"
_STATE, _NAME = 11, 24
_STYLES = {"failed": "red", "degraded": "yellow", "interrupted": "cyan", "streaming": "dim"}

Url = Annotated[
    str,
    typer.Option(metavar="URL", help="The address of the server.", envvar="TURNKEEPER_URL"),
]


def tap(url: Url = "http://127.0.0.1:8080", *, json: Json = False) -> None:
    """Show the turns of a running server live, without their words.

    The API key is read from TURNKEEPER_KEY, else the first one in TURNKEEPER_KEYS that is not for chat only.
    """
    with reported_errors():
        for line in _events(url, find_key(os.environ)):
            if json:
                typer.echo(line.decode())
            else:
                write_lines([event_line(msgspec.json.decode(line, type=Event))], sys.stdout)
                sys.stdout.flush()


def find_key(environ: Mapping[str, str]) -> str:
    """Returns the secret of the key to authenticate with; empty where there is none."""
    if key := environ.get("TURNKEEPER_KEY"):
        return key
    for entry in environ.get("TURNKEEPER_KEYS", "").split(","):
        _, _, rest = entry.strip().partition(":")
        secret, _, scope = rest.partition(":")
        if secret and scope != "chat":
            return secret
    return ""


def event_line(event: Event) -> render.StyledLine:
    """Formats an event as one line, in local time."""
    at = datetime.fromtimestamp(event.at).astimezone().strftime("%H:%M:%S")
    first = "—" if event.first_token_ms is None else f"{event.first_token_ms:.0f} ms"
    columns = [event.session or "no session", event.user or "", event.model or ""]
    names = " ".join(f"{name[:_NAME]:{_NAME}}" for name in columns)
    rest = " ".join(filter(None, [event.pipeline, event.code, *event.degraded]))
    state = (f"{event.state:{_STATE}}", _STYLES.get(event.state, ""))
    return [(f"{at}  ", "dim"), state, (f"  {first:>8}  {names} {rest}", "")]


def _events(url: str, key: str) -> Iterator[bytes]:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        address = urlsplit(url)
        kind = http.client.HTTPSConnection if address.scheme == "https" else http.client.HTTPConnection
        connection = kind(address.hostname or "", address.port)
        connection.request("GET", address.path.rstrip("/") + _PATH, headers=headers)
        with connection.getresponse() as response:
            if response.status != http.client.OK:
                raise ConfigError(f"{url} answered {response.status}: {_advice(response)}")
            for line in response:
                if data := data_of(line):
                    yield data
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise ConfigError(
            f"{url} cannot be reached: {error}; start the server, or name it with --url"
        ) from None


def _advice(response: http.client.HTTPResponse) -> str:
    if response.status in {http.client.UNAUTHORIZED, http.client.FORBIDDEN}:
        return "set TURNKEEPER_KEY to the secret of one of its keys, not for chat alone"
    try:
        return str(msgspec.json.decode(response.read(10_000))["error"]["message"])
    except (msgspec.DecodeError, LookupError, TypeError):
        return "this is no Turnkeeper"
