"""The command line."""

import json
import os
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from proxy import assembly, describe, editor, listing, server
from proxy.configuration import faults, load, shelf_of
from proxy.errors import ConfigError
from proxy.reload import Reload
from proxy.settings import Settings
from proxy.shelf import Shelf
from proxy.version import VERSION
from proxy.word import alternatives, quoted

app = typer.Typer(
    help="An OpenAI-compatible LLM proxy for voice agents.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
Own = Annotated[
    Path | None, typer.Option(metavar="CONFIG", help="A YAML file, for the filters that it names.")
]
Files = Annotated[list[Path], typer.Argument(metavar="CONFIG", help="YAML files.")]


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


@app.command()
def check(files: Files) -> None:
    """Tell all that is wrong with configurations: file, line, place, and what to write instead."""
    good = [_check(file) for file in files]
    if not all(good):
        raise typer.Exit(1)


def _check(file: Path) -> bool:
    found = faults(file, os.environ)
    for fault in found:
        typer.echo(str(fault), err=True)
    if not found:
        typer.echo(f"{file}: ok")
    return not found


@app.command()
def filters(
    name: Annotated[str | None, typer.Argument(help="One filter, for its page.")] = None,
    config: Own = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """List the filters that there are, or show one: what it does, its options, examples."""
    pages = describe.pages(_shelf(config))
    found = [page for page in pages if page.name == (name or page.name)]
    if not found:
        known = dict.fromkeys(page.name for page in pages)
        typer.echo(f"no filter named{quoted(name or '')}{alternatives(name or '', known)}", err=True)
        raise typer.Exit(2)
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(found)))
    elif name:
        listing.show_pages(found, Console())
    else:
        listing.show_list(found, Console())


@app.command()
def schema(
    config: Own = None,
    out: Annotated[Path | None, typer.Option(help="Write a file instead.")] = None,
) -> None:
    """Print the JSON Schema of configurations, by which an editor completes and underlines."""
    text = json.dumps(editor.schema(_shelf(config)), indent=2, ensure_ascii=False) + "\n"
    if out is None:
        typer.echo(text, nl=False)
    else:
        out.write_text(text, encoding="utf-8")


def _shelf(config: Path | None) -> Shelf:
    try:
        return shelf_of(config, os.environ) if config else Shelf()
    except ConfigError as error:
        typer.echo(error.message, err=True)
        raise typer.Exit(1) from None


@app.command()
def serve(
    config: Annotated[Path, typer.Argument(help="A YAML file.")] = Path("config/agora.yaml"),
    *,
    reload: Annotated[bool, typer.Option("--reload", help="Follow changes of the file.")] = False,
) -> None:
    """Serve a configuration until SIGTERM or SIGINT; SIGHUP reads it again."""
    try:
        settings = load(config, os.environ)
    except ConfigError as error:
        typer.echo(error.message, err=True)
        raise typer.Exit(1) from None
    typer.echo(_greeting(settings))
    serving = assembly.app(settings, os.environ)
    again = Reload(serving, settings, config, os.environ)
    server.serve(serving, again, host=settings.listen.host, port=settings.listen.port, watch=reload)


def _greeting(settings: Settings) -> str:
    lines = [f"Turnkeeper {VERSION} on http://{settings.listen.host}:{settings.listen.port}"]
    for name, pipeline in settings.pipelines.items():
        first = settings.upstreams[pipeline.upstreams[0]]
        model = "the practice model; set UPSTREAM_BASE_URL for a real one"
        lines.append(f"  {name} → {model if first.base_url == 'practice:' else first.base_url}")
    return "\n".join(lines)
