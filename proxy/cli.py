"""The command line."""

import os
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated

import typer

from proxy.configuration import faults

app = typer.Typer(
    help="An OpenAI-compatible LLM proxy for voice agents.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
Files = Annotated[list[Path], typer.Argument(metavar="CONFIG", help="YAML files.")]


def main() -> None:
    """The ``turnkeeper`` command."""
    app()


def _show_version(asked: bool) -> None:  # noqa: FBT001 - typer hands an option's value over like this
    if asked:
        typer.echo(f"turnkeeper {_version()}")
        raise typer.Exit


def _version() -> str:
    try:
        return version("turnkeeper")
    except PackageNotFoundError:
        return "(not installed)"


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
