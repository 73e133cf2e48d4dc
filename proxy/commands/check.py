import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer

from proxy.commands.terminal import Json, write_json
from proxy.configuration.document import MAX_BYTES
from proxy.configuration.fault import Fault
from proxy.configuration.load import bytes_of, faults, warnings

_STDIN: Final = Path("-")


def check(
    files: Annotated[list[Path], typer.Argument(metavar="CONFIG", help="YAML files; - reads stdin.")],
    *,
    strict: Annotated[bool, typer.Option("--strict", help="Take warnings for faults.")] = False,
    as_json: Json = False,
) -> None:
    """Tell all that is wrong with configurations: file, line, place, and what to write instead."""
    # What comes through a pipe can be read once.
    piped = sys.stdin.buffer.read(MAX_BYTES + 1) if _STDIN in files else b""

    def reader(file: Path) -> bytes:
        return piped if file == _STDIN else bytes_of(file)

    wrong = {file: faults(file, os.environ, reader=reader) for file in files}
    doubtful = {file: [] if wrong[file] else warnings(file, os.environ, reader=reader) for file in files}
    if as_json:
        write_json(msgspec.json.encode([*_rows(wrong, "fault"), *_rows(doubtful, "warning")]))
    for file in [] if as_json else files:
        for fault in (*wrong[file], *doubtful[file]):
            typer.echo(str(fault))
        if not wrong[file]:
            typer.echo(f"{file}: ok")
    if any(wrong.values()) or (strict and any(doubtful.values())):
        raise typer.Exit(1)


def _rows(found: Mapping[Path, list[Fault]], severity: str) -> list[dict[str, object]]:
    return [{**msgspec.to_builtins(each), "severity": severity} for told in found.values() for each in told]
