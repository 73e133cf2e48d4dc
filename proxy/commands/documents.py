import time
from pathlib import Path
from typing import Annotated

import typer

from proxy.commands.configured import USUAL, Where
from proxy.commands.memory import Tenant, archived, archiving_of, nowhere, remembered
from proxy.commands.terminal import codes
from proxy.memory.archive.archive import Archive
from proxy.memory.archive.chunks import chunks
from proxy.memory.archive.reading import files, text_of
from proxy.pipeline import Memory

documents = typer.Typer(help="What the filter 'recall' tells of your own documents.", no_args_is_help=True)

Paths = Annotated[list[Path], typer.Argument(metavar="PATH", help="Files or folders: Markdown, text, PDF.")]
Names = Annotated[list[str], typer.Argument(metavar="NAME", help="Names, as 'documents list' shows them.")]


@documents.command(epilog=codes(good="all were added", bad="one could not be, or there is no archive"))
def add(paths: Paths, *, config: Where = USUAL, tenant: Tenant = "") -> None:
    """Add documents; what was added under the same path before is replaced."""
    from rich.console import Console
    from rich.progress import track

    found = [path for given in paths for path in files(given)]

    async def work(memory: Memory, whose: str) -> list[str]:
        archive = archiving_of(memory).archive
        names = track(found, description="Adding", console=Console(stderr=True), transient=True)
        return [fault for path in names if (fault := await _added(archive, whose, path))]

    faults = remembered(config, tenant, work, there=nowhere)
    typer.echo(f"{len(found) - len(faults)} of {len(found)} documents were added.")
    for fault in faults:
        typer.echo(fault, err=True)
    if faults or not found:
        raise typer.Exit(1)


@documents.command("list", epilog=codes(good="listed", bad="there is no archive"))
def list_(*, config: Where = USUAL, tenant: Tenant = "") -> None:
    """List the documents."""

    async def work(memory: Memory, whose: str) -> list[str]:
        return await archiving_of(memory).archive.documents(whose)

    for name in remembered(config, tenant, work, there=archived):
        typer.echo(name)


@documents.command(epilog=codes(good="all were removed", bad="one was not there, or there is no archive"))
def remove(names: Names, *, config: Where = USUAL, tenant: Tenant = "") -> None:
    """Remove documents."""

    async def work(memory: Memory, whose: str) -> list[str]:
        archive = archiving_of(memory).archive
        return [name for name in names if not await archive.remove_document(whose, name)]

    missing = remembered(config, tenant, work, there=archived)
    for name in missing:
        typer.echo(f"There is no document '{name}'.", err=True)
    if missing:
        raise typer.Exit(1)


async def _added(archive: Archive, tenant: str, path: Path) -> str:
    """What is wrong with it, if anything."""
    try:
        parts = chunks(text_of(path), path.stem)
    except (OSError, ValueError) as error:
        return f"{path}: {error.strerror if isinstance(error, OSError) else error}"
    if not parts:
        return f"{path}: there is no text in it"
    await archive.add_document(tenant, path.as_posix(), parts, at=time.time())
    return ""
