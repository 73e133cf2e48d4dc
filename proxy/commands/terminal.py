"""What all commands share: options, how they speak, and how they fail."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from proxy.errors import TurnkeeperError
from proxy.trial import sheet

Config = Annotated[Path, typer.Argument(help="A YAML file.")]
Files = Annotated[list[Path], typer.Argument(metavar="CONFIG", help="YAML files.")]
Json = Annotated[bool, typer.Option("--json", help="Write JSON, for machines.")]
Own = Annotated[
    Path | None, typer.Option(metavar="CONFIG", help="A YAML file, for the filters that it names.")
]


def codes(*, good: str, bad: str) -> str:
    """What a command's help says of its exit codes."""
    return f"Exit code: 0 {good}, 1 {bad}, 2 the command is written wrongly."


@contextmanager
def told() -> Iterator[None]:
    """What we report ourselves is a line on stderr, and exit code 1."""
    try:
        yield
    except TurnkeeperError as error:
        typer.echo(sheet.plain(map(sheet.line, error.message.split("\n"))), err=True, nl=False)
        raise typer.Exit(1) from None


def write_json(data: bytes) -> None:
    """JSON on stdout, in lines that people can read too."""
    typer.echo(msgspec.json.format(data, indent=2))
