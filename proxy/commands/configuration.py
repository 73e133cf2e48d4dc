"""``check``, ``init``, ``filters`` and ``schema``: the commands on configurations and their format."""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import typer

from proxy.commands.terminal import (
    OWN_CONFIG,
    SHIPPED_CONFIG,
    FilterConfig,
    Json,
    reported_errors,
    unwritable,
    usage_error,
    write_json,
)
from proxy.describe.pages import KINDS, FilterPage, filter_reference, pages
from proxy.describe.schema import settings_schema
from proxy.errors import TurnkeeperError
from proxy.settings.diagnostics import alternatives, quoted
from proxy.settings.document import MAX_BYTES
from proxy.settings.filter_registry import FilterRegistry
from proxy.settings.load import check_config, load_registry, read_bytes

if TYPE_CHECKING:
    from rich.console import Console

_STDIN: Final = Path("-")


def check(
    files: Annotated[list[Path], typer.Argument(metavar="CONFIG", help="YAML files; - reads stdin.")],
    *,
    strict: Annotated[bool, typer.Option("--strict", help="Treat warnings as errors.")] = False,
    as_json: Json = False,
) -> None:
    """Check configurations, and show every error with file, line, key and remedy."""
    # A pipe can be read only once.
    stdin = sys.stdin.buffer.read(MAX_BYTES + 1) if _STDIN in files else b""

    def reader(file: Path) -> bytes:
        return stdin if file == _STDIN else read_bytes(file)

    checked = {file: check_config(file, os.environ, reader=reader) for file in files}
    errors = [error for each in checked.values() for error in each.errors]
    warnings = [warning for each in checked.values() for warning in each.warnings]
    if as_json:
        rows = [
            {**msgspec.to_builtins(diagnostic), "severity": severity}
            for severity, diagnostics in (("error", errors), ("warning", warnings))
            for diagnostic in diagnostics
        ]
        write_json(msgspec.json.encode(rows))
    for file, each in {} if as_json else checked.items():
        for diagnostic in (*each.errors, *each.warnings):
            typer.echo(str(diagnostic))
        if each.settings:
            typer.echo(f"{file}: ok")
            if each.settings.memory and (note := each.settings.memory.lacks_archive):
                typer.echo(f"  {note}")
    if errors or (strict and warnings):
        raise typer.Exit(1)


def init(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write.")] = OWN_CONFIG,
    *,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
) -> None:
    """Write the shipped configuration to a file, for you to change."""
    with reported_errors():
        try:
            with file.open("wb" if force else "xb") as out:
                out.write(SHIPPED_CONFIG.read_bytes())
        except FileExistsError:
            raise TurnkeeperError(f"{file}: exists already; --force overwrites it") from None
        except (OSError, ValueError) as error:
            raise TurnkeeperError(unwritable(file, error)) from None
    serve = "turnkeeper serve" if file == OWN_CONFIG else f"turnkeeper serve {file}"
    typer.echo(f"{file} written. After a change: turnkeeper check {file}. To serve it: {serve}")
    typer.echo("An editor completes its keys after: turnkeeper schema --out schema.json")


def filters(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="The filter to show; without it, all are listed.")
    ] = None,
    config: FilterConfig = None,
    *,
    as_json: Json = False,
) -> None:
    """List the available filters, or show one with its options and examples."""
    every = pages(_registry(config))
    selected = [page for page in every if page.name == (name or page.name)]
    if not selected:
        names = dict.fromkeys(page.name for page in every)
        raise usage_error(f"no filter named{quoted(name or '')}{alternatives(name or '', names)}")
    if as_json:
        write_json(msgspec.json.encode(selected))
        return
    from rich.console import Console

    (_show_pages if name else _show_list)(selected, Console())


def schema(
    config: FilterConfig = None,
    out: Annotated[Path | None, typer.Option(help="Write to this file instead of stdout.")] = None,
) -> None:
    """Print the JSON Schema of configurations, for completion and checks in an editor."""
    text = json.dumps(settings_schema(_registry(config)), indent=2, ensure_ascii=False) + "\n"
    if out is None:
        typer.echo(text, nl=False)
        return
    with reported_errors():
        try:
            out.write_text(text, encoding="utf-8")
        except (OSError, ValueError) as error:
            raise TurnkeeperError(unwritable(out, error)) from None


def _registry(config: Path | None) -> FilterRegistry:
    """Returns the filters that a configuration may name; without one, the shipped and installed ones."""
    with reported_errors():
        return load_registry(config, os.environ) if config else FilterRegistry()


def _show_list(pages: Sequence[FilterPage], console: "Console") -> None:
    """Prints a line for each filter, by side; plain text if the console is not a terminal."""
    from rich.table import Table
    from rich.text import Text

    width = max((len(page.name) for page in pages), default=0)
    for side in KINDS:
        of_side = [page for page in pages if page.side == side]
        if not of_side:
            continue
        console.print(Text(f"{side}:", style="bold"))
        if not console.is_terminal:
            _write_plain(console, [f"  {page.name:{width}}  {page.summary}" for page in of_side])
            continue
        table = Table(box=None, show_header=False, padding=(0, 2))
        table.add_column(style="cyan", min_width=width, no_wrap=True)
        table.add_column()
        for page in of_side:
            table.add_row(Text(page.name), Text(page.summary))
        console.print(table)


def _show_pages(pages: Sequence[FilterPage], console: "Console") -> None:
    """Prints the whole page of a filter, for each side that it has."""
    from rich.console import Group
    from rich.markdown import Markdown

    texts = [filter_reference(page) for page in pages]
    if console.is_terminal:
        console.print(Group(*map(Markdown, texts)))
    else:
        _write_plain(console, "\n".join(texts).splitlines())


def _write_plain(console: "Console", lines: Sequence[str]) -> None:
    """Writes lines without wrapping them, which is left to the reader."""
    for line in lines:
        console.file.write(f"{line}\n")
