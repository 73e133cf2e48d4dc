import os
import sys
import time
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from proxy import assembly
from proxy.commands.terminal import Config, Json, miswritten, show, told, write_json
from proxy.configuration.load import load
from proxy.configuration.settings import Settings
from proxy.errors import RequestError
from proxy.trial import narration, sample
from proxy.trial.explain import of
from proxy.turn.pipeline import Pipeline


def explain(
    config: Config,
    request: Annotated[
        Path, typer.Argument(help="A request's body as JSON, or {headers, path, body}; - reads stdin.")
    ],
    *,
    pipeline: Annotated[str, typer.Option(help="Which pipeline it goes through.")] = "default",
    header: Annotated[
        list[str] | None, typer.Option(metavar="'NAME: VALUE'", help="A header of the request.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Tell what each filter does to a request, and what would be sent. Nothing is sent."""
    with told():
        headers = dict(map(_header, header or ()))
        settings = load(config, os.environ)
        posted = sample.request(_read(request, settings.listen.max_body), headers)
        remembers = settings.memory is not None
        explanation = of(posted, _named(settings, pipeline), time.time(), remembers=remembers)
        if as_json:
            write_json(msgspec.json.encode(explanation))
        else:
            show(narration.narrated(explanation, timed=sys.stdout.isatty()), sys.stdout)


def _named(settings: Settings, name: str) -> Pipeline:
    # Nothing is sent, so it does not matter by which proxy.
    ready = assembly.pipelines(settings, {})
    if name not in ready:
        raise miswritten(f"There is no pipeline '{name}'; there are: {', '.join(ready)}.")
    return ready[name]


def _header(given: str) -> tuple[str, str]:
    try:
        return sample.header(given)
    except RequestError as error:
        raise miswritten(error.message) from None


def _read(path: Path, most: int) -> bytes:
    try:
        with sys.stdin.buffer if str(path) == "-" else path.open("rb") as file:
            data = file.read(most + 1)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "no file"
        raise RequestError(f"{path}: cannot be read: {why}") from None
    if len(data) > most:
        raise RequestError(f"{path}: has more than {most} bytes; 'listen.max_body' sets the limit.")
    return data
