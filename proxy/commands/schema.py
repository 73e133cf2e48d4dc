import json
from pathlib import Path
from typing import Annotated

import typer

from proxy.commands.filters import shelf
from proxy.commands.terminal import Own, told
from proxy.describe import editor
from proxy.errors import TurnkeeperError


def schema(
    config: Own = None,
    out: Annotated[Path | None, typer.Option(help="Write a file instead.")] = None,
) -> None:
    """Print the JSON Schema of configurations, by which an editor completes and underlines."""
    text = json.dumps(editor.schema(shelf(config)), indent=2, ensure_ascii=False) + "\n"
    if out is None:
        typer.echo(text, nl=False)
    else:
        with told():
            _write(out, text)


def _write(out: Path, text: str) -> None:
    try:
        out.write_text(text, encoding="utf-8")
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "no file"
        raise TurnkeeperError(f"{out}: cannot be written: {why}") from None
