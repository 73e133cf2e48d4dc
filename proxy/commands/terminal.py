"""What all commands share: options, how they speak, and how they fail."""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Final, TextIO

import msgspec
import typer

from proxy.errors import ConfigError, TurnkeeperError
from proxy.settings.load import load
from proxy.settings.settings import Settings
from proxy.trial import render

Config = Annotated[Path, typer.Argument(help="A YAML file.")]
Files = Annotated[list[Path], typer.Argument(metavar="CONFIG", help="YAML files.")]
Json = Annotated[bool, typer.Option("--json", help="Write JSON, for machines.")]
FilterConfig = Annotated[
    Path | None, typer.Option(metavar="CONFIG", help="A YAML file, for the filters that it names.")
]
DEFAULT_CONFIG: Final = Path("config/agora.yaml")
_NAMED_BY: Final = "TURNKEEPER_CONFIG"


def exit_codes(*, good: str, bad: str) -> str:
    """What a command's help says of its exit codes."""
    return f"Exit code: 0 {good}, 1 {bad}, 2 the command is written wrongly."


@contextmanager
def reported_errors() -> Iterator[None]:
    """What we report ourselves is a line on stderr, and exit code 1."""
    try:
        yield
    except TurnkeeperError as error:
        typer.echo(render.plain(map(render.line, error.message.split("\n"))), err=True, nl=False)
        raise typer.Exit(1) from None


def usage_error(message: str) -> typer.Exit:
    """The end of a command that is written wrongly, which is told now."""
    typer.echo(render.plain([render.line(message)]), err=True, nl=False)
    return typer.Exit(2)


def write_lines(lines: Iterable[render.Line], file: TextIO) -> None:
    """The lines in a terminal in colour; plain in a file or a pipe."""
    if not file.isatty():
        file.write(render.plain(lines).encode(file.encoding, "backslashreplace").decode(file.encoding))
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(file=file, highlight=False)
    for each in lines:
        spans = [(render.visible(text), style) for text, style in each]
        console.print(Text.assemble(*spans), soft_wrap=True)


def write_json(data: bytes) -> None:
    """JSON on stdout, in lines that people can read too."""
    typer.echo(msgspec.json.format(data, indent=2))


_HOW: Final = f"Name another in {_NAMED_BY}, or as --help says."


ConfigArgument = Annotated[Path, typer.Argument(metavar="CONFIG", help="A YAML file.", envvar=_NAMED_BY)]


ConfigOption = Annotated[
    Path, typer.Option("--config", metavar="CONFIG", help="A YAML file.", envvar=_NAMED_BY)
]


def load_configured(config: Path) -> Settings:
    """What a configuration says; raises ConfigError, which tells how to name another where there is none."""
    try:
        return load(config, os.environ)
    except ConfigError as error:
        raise error if config.exists() else ConfigError(f"{error.message}\n{_HOW}") from None
