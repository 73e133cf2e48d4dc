import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from proxy.commands.terminal import Files, Json, write_json
from proxy.configuration.fault import Fault
from proxy.configuration.load import faults, warnings


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
