"""The command line."""

import errno
import os
import sys
from collections.abc import Callable
from typing import Annotated, Final

import typer

from proxy.commands.configuration import check, filters, init, schema
from proxy.commands.memory import documents, export, forget
from proxy.commands.serve import serve, worker
from proxy.commands.tap import tap
from proxy.commands.terminal import exit_codes
from proxy.commands.trial import explain, replay, run_tests
from proxy.version import VERSION, interpreter

_UNWRITABLE: Final = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EPIPE}

app = typer.Typer(
    help="An OpenAI-compatible LLM proxy for voice agents.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _add(command: Callable[..., None], *, good: str, bad: str, name: str | None = None) -> None:
    app.command(name, epilog=exit_codes(good=good, bad=bad))(command)


_add(serve, good="ended by a signal", bad="the configuration is wrong")
_add(init, good="written", bad="the file exists, or cannot be written")
_add(check, good="no error", bad="an error, or with --strict a warning")
_add(explain, good="explained", bad="the configuration or the request is wrong")
_add(run_tests, name="test", good="all cases pass", bad="one fails, or a configuration is wrong")
_add(
    replay,
    good="shown, whether prompts differ or not",
    bad="there is no such conversation, or a configuration is wrong",
)
_add(filters, good="shown", bad="the configuration is wrong")
_add(schema, good="printed", bad="the configuration is wrong, or the file cannot be written")
_add(worker, good="ended by a signal", bad="the configuration is wrong, or has no memory")
_add(tap, good="the server has ended", bad="it cannot be reached, or refuses")
app.add_typer(documents, name="documents")
_add(export, good="written", bad="memory does not answer, or the configuration is wrong")
_add(forget, good="forgotten", bad="memory does not answer, or the configuration is wrong")


def main() -> None:
    """Runs the ``turnkeeper`` command; if its output cannot be written, it ends without a traceback."""
    try:
        try:
            app()
        finally:
            sys.stdout.flush()
    except OSError as error:
        if error.errno not in _UNWRITABLE:
            raise
        if error.errno != errno.EPIPE:
            typer.echo(f"The output cannot be written: {error.strerror}", err=True)
        # The interpreter would try to write the rest when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


def _show_version(value: bool) -> None:  # noqa: FBT001 - typer hands an option's value over like this
    if value:
        typer.echo(f"turnkeeper {VERSION} ({interpreter()})")
        raise typer.Exit


@app.callback()
def _root(
    *,
    _version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_show_version,
            is_eager=True,
            help="Show the version and the Python interpreter.",
        ),
    ] = False,
) -> None:
    """An OpenAI-compatible LLM proxy for voice agents."""
