"""Options, output and errors that all commands share."""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Final, TextIO

import msgspec
import typer

import turnkeeper
from proxy.errors import ConfigError, TurnkeeperError
from proxy.settings.diagnostics import Diagnostic
from proxy.settings.load import check_config
from proxy.settings.settings import Settings
from proxy.trial import render

OWN_CONFIG: Final = Path("turnkeeper.yaml")
SHIPPED_CONFIG: Final = Path(turnkeeper.__file__).with_name("agora.yaml").resolve()
_CONFIG_VARIABLE: Final = "TURNKEEPER_CONFIG"
_CONFIG_HELP: Final = (
    f"A YAML file; by default {OWN_CONFIG}, else ${_CONFIG_VARIABLE}, else the shipped agora.yaml."
)


def default_config() -> Path:
    """The default configuration: the one in the folder, else in the environment, else the shipped one."""
    if OWN_CONFIG.exists():
        return OWN_CONFIG
    return Path(os.environ.get(_CONFIG_VARIABLE) or SHIPPED_CONFIG)


Config = Annotated[Path, typer.Argument(metavar="CONFIG", help="A YAML file.")]
Files = Annotated[list[Path], typer.Argument(metavar="CONFIG", help="YAML files.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]
FilterConfig = Annotated[
    Path | None, typer.Option(metavar="CONFIG", help="A YAML file; its own filters are included.")
]
ConfigArgument = Annotated[
    Path,
    typer.Argument(metavar="CONFIG", help=_CONFIG_HELP, default_factory=default_config, show_default=False),
]
ConfigOption = Annotated[
    Path,
    typer.Option(
        "--config", metavar="CONFIG", help=_CONFIG_HELP, default_factory=default_config, show_default=False
    ),
]


def load_configured(config: Path) -> Settings:
    """Loads the server's configuration. Raises ConfigError, with a hint for a missing file."""
    return load_with_hint(config)[0]


def load_with_hint(config: Path) -> tuple[Settings, list[Diagnostic]]:
    """Loads the server's configuration, with its warnings. Raises ConfigError as ``load_configured`` does."""
    checked = check_config(config, os.environ)
    try:
        return checked.valid(), checked.warnings
    except ConfigError as error:
        hint = f"Name another in {_CONFIG_VARIABLE}, or as --help says."
        raise error if config.exists() else ConfigError(f"{error.message}\n{hint}") from None


@contextmanager
def reported_errors() -> Iterator[None]:
    """Turns a TurnkeeperError into its message on stderr and exit code 1."""
    try:
        yield
    except TurnkeeperError as error:
        typer.echo(render.plain(map(render.line, error.message.split("\n"))), err=True, nl=False)
        raise typer.Exit(1) from None


def usage_error(message: str) -> typer.Exit:
    """Writes a usage error to stderr; returns the exit to be raised, with exit code 2."""
    typer.echo(render.plain([render.line(message)]), err=True, nl=False)
    return typer.Exit(2)


def unwritable(file: Path, error: OSError | ValueError) -> str:
    """The message for a file that cannot be written."""
    return f"{file}: cannot be written: {getattr(error, 'strerror', None) or 'not a file name'}"


def exit_codes(*, good: str, bad: str) -> str:
    """The line about exit codes in the help of a command."""
    return f"Exit code: 0 {good}, 1 {bad}, 2 usage error."


def write_lines(lines: Iterable[render.StyledLine], file: TextIO) -> None:
    """Writes lines in colour to a terminal, and plain to a file or a pipe."""
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
    """Writes JSON to stdout, indented."""
    typer.echo(msgspec.json.format(data, indent=2))
