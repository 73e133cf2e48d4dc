"""What all commands share: options, how they speak, and how they fail."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, TextIO

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


def miswritten(message: str) -> typer.Exit:
    """The end of a command that is written wrongly, which is told now."""
    typer.echo(sheet.plain([sheet.line(message)]), err=True, nl=False)
    return typer.Exit(2)


def show(lines: Iterable[sheet.Line], file: TextIO) -> None:
    """The lines in a terminal in colour; plain in a file or a pipe."""
    if not file.isatty():
        file.write(sheet.plain(lines).encode(file.encoding, "backslashreplace").decode(file.encoding))
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(file=file, highlight=False)
    for each in lines:
        spans = [(sheet.visible(text), style) for text, style in each]
        console.print(Text.assemble(*spans), soft_wrap=True)


def write_json(data: bytes) -> None:
    """JSON on stdout, in lines that people can read too."""
    typer.echo(msgspec.json.format(data, indent=2))
