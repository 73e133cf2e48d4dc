"""The command line."""

import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from proxy import assembly, cases, explain, narration, sample, server, sheet, verdict
from proxy.configuration import faults, load, warnings
from proxy.errors import NotFound, RequestError, TurnkeeperError
from proxy.fault import Fault
from proxy.pipeline import Pipeline
from proxy.settings import Settings
from proxy.version import VERSION

app = typer.Typer(
    help="An OpenAI-compatible LLM proxy for voice agents.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
Files = Annotated[list[Path], typer.Argument(metavar="CONFIG", help="YAML files.")]
Json = Annotated[bool, typer.Option("--json", help="Write JSON, for machines.")]
_CODES = "Exit code: 0 {good}, 1 {bad}, 2 the command is written wrongly."


def main() -> None:
    """The ``turnkeeper`` command."""
    app()


def _show_version(asked: bool) -> None:  # noqa: FBT001 - typer hands an option's value over like this
    if asked:
        typer.echo(f"turnkeeper {VERSION}")
        raise typer.Exit


@app.callback()
def _root(
    *,
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """An OpenAI-compatible LLM proxy for voice agents."""


@app.command(epilog=_CODES.format(good="sound", bad="a fault, or with --strict a warning"))
def check(
    files: Files,
    *,
    strict: Annotated[bool, typer.Option("--strict", help="Take warnings for faults.")] = False,
    as_json: Json = False,
) -> None:
    """Tell all that is wrong with configurations: file, line, place, and what to write instead."""
    wrong = {file: faults(file, os.environ) for file in files}
    doubtful = {file: [] if wrong[file] else warnings(file, os.environ) for file in files}
    if as_json:
        _write(msgspec.json.encode([*_rows(wrong, "fault"), *_rows(doubtful, "warning")]))
    for file in [] if as_json else files:
        for fault in (*wrong[file], *doubtful[file]):
            typer.echo(str(fault), err=True)
        if not wrong[file]:
            typer.echo(f"{file}: ok")
    if any(wrong.values()) or (strict and any(doubtful.values())):
        raise typer.Exit(1)


def _rows(found: Mapping[Path, list[Fault]], severity: str) -> list[dict[str, object]]:
    return [{**msgspec.to_builtins(each), "severity": severity} for told in found.values() for each in told]


@app.command(
    "explain", epilog=_CODES.format(good="explained", bad="the configuration or the request is wrong")
)
def _explain(
    config: Annotated[Path, typer.Argument(help="A YAML file.")],
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
    with _told():
        settings = load(config, os.environ)
        posted = sample.request(_read(request, settings.listen.max_body), header or ())
        told = explain.of(posted, _named(settings, pipeline), time.time())
        if as_json:
            _write(msgspec.json.encode(told))
        else:
            sheet.show(narration.narrated(told, timed=sys.stdout.isatty()), sys.stdout)


@app.command(
    "test", epilog=_CODES.format(good="all cases hold", bad="one does not, or a configuration is wrong")
)
def _test(files: Files, *, as_json: Json = False) -> None:
    """Try the cases that stand beside the pipelines of configurations, under 'tests'."""
    with _told():
        results = {str(file): _tried(load(file, os.environ)) for file in files}
    if as_json:
        _write(verdict.encoded(results))
    else:
        sheet.show(verdict.told(results), sys.stdout)
    if any(result.failures for tried in results.values() for result in tried):
        raise typer.Exit(1)


def _tried(settings: Settings) -> list[cases.Result]:
    ready = _ready(settings)
    return [
        cases.tried(case, ready[name], pipeline.answer)
        for name, pipeline in settings.pipelines.items()
        for case in pipeline.tests
    ]


@contextmanager
def _told() -> Iterator[None]:
    """What we report ourselves is a line on stderr, and exit code 1."""
    try:
        yield
    except TurnkeeperError as error:
        typer.echo(sheet.plain(map(sheet.line, error.message.split("\n"))), err=True, nl=False)
        raise typer.Exit(1) from None


def _ready(settings: Settings) -> Mapping[str, Pipeline]:
    # Nothing is sent, so it does not matter by which proxy.
    return assembly.pipelines(settings, {})


def _named(settings: Settings, name: str) -> Pipeline:
    ready = _ready(settings)
    if name not in ready:
        raise NotFound(f"There is no pipeline '{name}'; there are: {', '.join(ready)}.")
    return ready[name]


def _read(path: Path, most: int) -> bytes:
    try:
        with sys.stdin.buffer if str(path) == "-" else path.open("rb") as file:
            data = file.read(most + 1)
    except (OSError, ValueError) as error:
        raise RequestError(
            f"{path}: cannot be read: {getattr(error, 'strerror', None) or 'no file'}"
        ) from None
    if len(data) > most:
        raise RequestError(f"{path}: has more than {most} bytes; 'listen.max_body' sets the limit.")
    return data


def _write(data: bytes) -> None:
    typer.echo(msgspec.json.format(data, indent=2))


@app.command()
def serve(
    config: Annotated[Path, typer.Argument(help="A YAML file.")] = Path("config/agora.yaml"),
) -> None:
    """Serve a configuration until SIGTERM or SIGINT."""
    with _told():
        settings = load(config, os.environ)
    typer.echo(_greeting(settings))
    server.serve(assembly.app(settings, os.environ), host=settings.listen.host, port=settings.listen.port)


def _greeting(settings: Settings) -> str:
    lines = [f"Turnkeeper {VERSION} on http://{settings.listen.host}:{settings.listen.port}"]
    for name, pipeline in settings.pipelines.items():
        first = settings.upstreams[pipeline.upstreams[0]]
        model = "the practice model; set UPSTREAM_BASE_URL for a real one"
        lines.append(f"  {name} → {model if first.base_url == 'practice:' else first.base_url}")
    return "\n".join(lines)
