"""``documents``: what the filter ``recall`` knows of the user's own documents."""

import shlex
import time
from pathlib import Path
from typing import Annotated, Final

import typer

from filters.recall import Recall
from proxy.commands.memory import Tenant, archive_address, no_address, require_archiving, run_on_memory
from proxy.commands.terminal import ConfigOption, exit_codes, load_configured
from proxy.memory.archive.archive import Archive
from proxy.memory.archive.documents import document_files, document_name, read_text, split_document
from proxy.memory.memory import Memory

_UNUSED: Final = (
    "No model is shown these documents: no pipeline has the step 'recall' under 'request:', or the tool"
    " 'memory_recall'. In the shipped configuration 'recall' stands ready to be uncommented"
)

documents = typer.Typer(help="Documents that the filter 'recall' quotes.", no_args_is_help=True)

Paths = Annotated[list[Path], typer.Argument(metavar="PATH", help="Files or folders: Markdown, text, PDF.")]
Names = Annotated[list[str], typer.Argument(metavar="NAME", help="Names, as 'documents list' shows them.")]


@documents.command(epilog=exit_codes(good="all were added", bad="one could not be, or there is no archive"))
def add(paths: Paths, *, config: ConfigOption, tenant: Tenant = "") -> None:
    """Add documents; what was added under the same path before is replaced.

    Of a folder, what is not there any more is named, and stays until it is removed.
    """
    from rich.console import Console
    from rich.progress import track

    files = {document_name(path): path for folder in paths for path in document_files(folder)}
    folders = [Path(document_name(path)) for path in paths if path.is_dir()]
    console = Console(stderr=True)

    async def work(memory: Memory, tenant: str) -> tuple[dict[str, str], list[str]]:
        archive, quiet = require_archiving(memory).archive, not console.is_terminal
        names = track(files, description="Adding", console=console, transient=True, disable=quiet)
        errors = {name: error for name in names if (error := await _add(archive, tenant, name, files[name]))}
        return errors, await archive.documents(tenant)

    errors, stored = run_on_memory(config, tenant, work, existing=no_address)
    typer.echo(f"{len(files) - len(errors)} of {len(files)} documents were added.")
    for error in errors.values():
        typer.echo(error, err=True)
    pipelines = load_configured(config).pipelines.values()
    if not any(
        "memory_recall" in one.tools or any(isinstance(step, Recall) for step in one.request)
        for one in pipelines
    ):
        typer.echo(_UNUSED, err=True)
    for name in stored:
        in_folder = any(map(Path(name).is_relative_to, folders))
        is_deleted = name not in files and in_folder and not Path(name).exists()
        if name in errors or is_deleted:
            command = f"turnkeeper documents remove {shlex.quote(name)}"
            typer.echo(f"{name}: what it said before is still told; it goes with: {command}", err=True)
    if errors or not files:
        raise typer.Exit(1)


async def _add(archive: Archive, tenant: str, name: str, path: Path) -> str:
    """Add a document; the error, or an empty text."""
    try:
        chunks = split_document(read_text(path), path.stem)
    except (OSError, ValueError) as error:
        return f"{path}: {error.strerror if isinstance(error, OSError) else error}"
    if not chunks:
        return f"{path}: there is no text in it"
    await archive.add_document(tenant, name, chunks, at=time.time())
    return ""


@documents.command("list", epilog=exit_codes(good="listed", bad="there is no archive"))
def list_(*, config: ConfigOption, tenant: Tenant = "") -> None:
    """List the documents."""

    async def work(memory: Memory, tenant: str) -> list[str]:
        return await require_archiving(memory).archive.documents(tenant)

    for name in run_on_memory(config, tenant, work, existing=archive_address):
        typer.echo(name)


@documents.command(
    epilog=exit_codes(good="all were removed", bad="one was not there, or there is no archive")
)
def remove(names: Names, *, config: ConfigOption, tenant: Tenant = "") -> None:
    """Remove documents."""

    async def work(memory: Memory, tenant: str) -> list[str]:
        archive = require_archiving(memory).archive
        missing = []
        for name in names:
            # Under its name, or else as the path of its file.
            removed = await archive.remove_document(tenant, name)
            if not removed and not await archive.remove_document(tenant, document_name(Path(name))):
                missing.append(name)
        return missing

    missing = run_on_memory(config, tenant, work, existing=archive_address)
    for name in missing:
        typer.echo(f"There is no document '{name}'.", err=True)
    if missing:
        raise typer.Exit(1)
