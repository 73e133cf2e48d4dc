import shlex
import time
from collections.abc import Collection
from pathlib import Path
from typing import Annotated

import typer

from proxy.commands.memory import Tenant, archived, archiving_of, nowhere, run_on_memory
from proxy.commands.terminal import DEFAULT_CONFIG, ConfigOption, exit_codes
from proxy.memory.archive.archive import Archive
from proxy.memory.archive.documents import document_files, document_name, read_text, split_document
from proxy.memory.memory import Memory

documents = typer.Typer(help="What the filter 'recall' tells of your own documents.", no_args_is_help=True)

Paths = Annotated[list[Path], typer.Argument(metavar="PATH", help="Files or folders: Markdown, text, PDF.")]
Names = Annotated[list[str], typer.Argument(metavar="NAME", help="Names, as 'documents list' shows them.")]


@documents.command(epilog=exit_codes(good="all were added", bad="one could not be, or there is no archive"))
def add(paths: Paths, *, config: ConfigOption = DEFAULT_CONFIG, tenant: Tenant = "") -> None:
    """Add documents; what was added under the same path before is replaced.

    Of a folder, what is not there any more is named, and stays until it is removed.
    """
    from rich.console import Console
    from rich.progress import track

    found = {document_name(path): path for given in paths for path in document_files(given)}
    console = Console(stderr=True)

    async def work(memory: Memory, whose: str) -> tuple[dict[str, str], list[str]]:
        archive, mute = archiving_of(memory).archive, not console.is_terminal
        names = track(found, description="Adding", console=console, transient=True, disable=mute)
        faults = {name: fault for name in names if (fault := await _added(archive, whose, name, found[name]))}
        return faults, await archive.documents(whose)

    faults, known = run_on_memory(config, tenant, work, there=nowhere)
    typer.echo(f"{len(found) - len(faults)} of {len(found)} documents were added.")
    for fault in faults.values():
        typer.echo(fault, err=True)
    for name in known:
        if name in faults or _is_gone(name, paths, found):
            goes = f"turnkeeper documents remove {shlex.quote(name)}"
            typer.echo(f"{name}: what it said before is still told; it goes with: {goes}", err=True)
    if faults or not found:
        raise typer.Exit(1)


def _is_gone(name: str, paths: Collection[Path], found: Collection[str]) -> bool:
    """Whether a document was in one of these folders, and is there no more."""
    folders = [Path(document_name(path)) for path in paths if path.is_dir()]
    return name not in found and any(map(Path(name).is_relative_to, folders)) and not Path(name).exists()


@documents.command("list", epilog=exit_codes(good="listed", bad="there is no archive"))
def list_(*, config: ConfigOption = DEFAULT_CONFIG, tenant: Tenant = "") -> None:
    """List the documents."""

    async def work(memory: Memory, whose: str) -> list[str]:
        return await archiving_of(memory).archive.documents(whose)

    for name in run_on_memory(config, tenant, work, there=archived):
        typer.echo(name)


@documents.command(
    epilog=exit_codes(good="all were removed", bad="one was not there, or there is no archive")
)
def remove(names: Names, *, config: ConfigOption = DEFAULT_CONFIG, tenant: Tenant = "") -> None:
    """Remove documents."""

    async def work(memory: Memory, whose: str) -> list[str]:
        archive = archiving_of(memory).archive
        return [name for name in names if not await _removed(archive, whose, name)]

    missing = run_on_memory(config, tenant, work, there=archived)
    for name in missing:
        typer.echo(f"There is no document '{name}'.", err=True)
    if missing:
        raise typer.Exit(1)


async def _removed(archive: Archive, tenant: str, name: str) -> bool:
    """Whether it was there, under this name or as the file that it is the path of."""
    if await archive.remove_document(tenant, name):
        return True
    return await archive.remove_document(tenant, document_name(Path(name)))


async def _added(archive: Archive, tenant: str, name: str, path: Path) -> str:
    """What is wrong with it, if anything."""
    try:
        parts = split_document(read_text(path), path.stem)
    except (OSError, ValueError) as error:
        return f"{path}: {error.strerror if isinstance(error, OSError) else error}"
    if not parts:
        return f"{path}: there is no text in it"
    await archive.add_document(tenant, name, parts, at=time.time())
    return ""
