"""``documents``, ``export`` and ``forget``, and the functions that all commands on memory share."""

import asyncio
import shlex
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
import typer

from filters.recall import Recall
from proxy.commands.terminal import ConfigOption, exit_codes, load_configured, reported_errors, write_json
from proxy.errors import TurnkeeperError
from proxy.memory.archive.archive import Archive
from proxy.memory.archive.documents import document_files, document_name, read_text, split_document
from proxy.memory.errors import StoreError, UnreadableSessions
from proxy.memory.memory import Archiving, Memory
from proxy.memory.stores.store import Owner
from proxy.server.bus import ErasureMessage
from proxy.server.hosts import notify_servers
from proxy.settings.build import build_memory, servers_channel, tenant_names

T = TypeVar("T")

User = Annotated[str, typer.Argument(metavar="USER", help="The user's id.")]
Session = Annotated[str, typer.Option("--session", metavar="ID", help="Only one session, of any user.")]
Tenant = Annotated[
    str, typer.Option("--tenant", metavar="NAME", help="A name in `keys`; required if there are several.")
]

_NOT_SHARED: Final = (
    "Sessions are stored in the server's own process (memory:), which a command cannot read. Ask the server:"
    " GET /v1/memory/users/ID/export, DELETE /v1/memory/users/ID or /v1/memory/sessions/ID."
)
_OTHER_FOLDER: Final = "Run this in the server's folder, with its configuration and environment."
_SERVERS_UNAWARE: Final = (
    "Running servers do not know of this: the turns that they keep for the web page are deleted"
    " when newer ones come, or by DELETE /v1/memory/users/ID or /v1/memory/sessions/ID to each server."
)
_UNREADABLE: Final = (
    "All readable data of this user was deleted. These sessions cannot be read, and may contain the user's"
    " words:"
)
_UNREADABLE_ADVICE: Final = (
    "Restore the key that they were encrypted with, or delete each by 'turnkeeper forget --session ID', or"
    " wait until they expire; then repeat this command."
)

_UNUSED: Final = (
    "No model gets these documents: no pipeline has the step 'recall' under 'request:', or the tool"
    " 'memory_recall'. The shipped configuration has 'recall' in a comment."
)

documents = typer.Typer(help="Manage the documents that the filter 'recall' quotes.", no_args_is_help=True)

Paths = Annotated[list[Path], typer.Argument(metavar="PATH", help="Files or folders: Markdown, text, PDF.")]
Names = Annotated[list[str], typer.Argument(metavar="NAME", help="Names, as 'documents list' prints them.")]


def run_on_memory(
    config: Path,
    tenant: str,
    work: Callable[[Memory, str], Awaitable[T]],
    *,
    existing: Literal["all", "archive", "none"] = "all",
) -> T:
    """Runs ``work`` on a configuration's memory for a tenant, and returns its result.

    The databases in ``existing``, of sessions and archive, must exist already, as a new one would be empty.
    Errors are reported as by ``reported_errors``.
    """
    with reported_errors():
        settings = load_configured(config)
        tenants = tenant_names(settings)
        if tenant and tenant not in tenants:
            raise TurnkeeperError(f"no key named '{tenant}'; available: {', '.join(tenants)}")
        if not tenant and len(tenants) > 1:
            raise TurnkeeperError(f"several tenants; name one with --tenant; available: {', '.join(tenants)}")
        addresses: list[str] = []
        if memory_settings := settings.memory:
            every = [memory_settings.sessions.get_secret_value(), memory_settings.archive_url]
            addresses = {"all": every, "archive": every[1:], "none": []}[existing]
        for url in addresses:
            path = Path(url.removeprefix("sqlite:"))
            if url == "memory:":
                raise TurnkeeperError(_NOT_SHARED)
            if url.startswith("sqlite:") and not path.exists():
                raise TurnkeeperError(f"There is no database at {path.absolute()}. {_OTHER_FOLDER}")

        async def run() -> T:
            memory = build_memory(settings)
            if memory is None:
                raise TurnkeeperError("this configuration has no memory; set 'memory:'")
            try:
                return await work(memory, tenant or tenants[0])
            except StoreError as error:
                raise TurnkeeperError(f"Memory does not answer: {error}") from None
            finally:
                await memory.aclose()

        return asyncio.run(run())


def require_archiving(memory: Memory) -> Archiving:
    """Returns the archive of a memory. Raises TurnkeeperError where there is none."""
    if memory.archiving is None:
        raise TurnkeeperError("there is no archive; store sessions in SQL, or set ARCHIVE_URL")
    return memory.archiving


def export(user: User, *, config: ConfigOption, tenant: Tenant = "") -> None:
    """Print all data of a user as JSON: sessions, turns and facts."""

    async def work(memory: Memory, tenant: str) -> dict[str, Any]:
        return await memory.privacy.export(Owner(tenant, user))

    write_json(msgspec.json.encode(run_on_memory(config, tenant, work)))


def forget(
    user: User = "",
    *,
    session: Session = "",
    config: ConfigOption,
    tenant: Tenant = "",
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
) -> None:
    """Delete all data of a user, or one session, for good. On a terminal it asks for confirmation."""
    if bool(user) == bool(session):
        raise typer.BadParameter("name a user, or a session with --session")
    if not yes and sys.stdin.isatty():
        what = f"the session '{session}'" if session else f"all that is stored of '{user}'"
        typer.confirm(f"Delete {what} for good?", abort=True)

    async def work(memory: Memory, tenant: str) -> tuple[Mapping[str, int], bool]:
        try:
            if session:
                counts = await memory.privacy.forget_session(tenant, session)
            else:
                counts = await memory.privacy.forget(Owner(tenant, user))
        except UnreadableSessions as error:
            unreadable = "".join(f"\n  {each}" for each in error.sessions)
            raise TurnkeeperError(f"{_UNREADABLE}{unreadable}\n{_UNREADABLE_ADVICE}") from None
        if memory.archiving is None and (channel := servers_channel(load_configured(config))):
            with suppress(StoreError):
                await notify_servers(channel, ErasureMessage(tenant, session or None, user or None))
                return counts, True
        return counts, memory.archiving is not None

    counts, servers_notice = run_on_memory(config, tenant, work)
    # The kinds are plurals, as in an export.
    names = {kind: kind.replace("_", " ") for kind in counts}
    forgotten = ", ".join(
        f"{count} {names[kind] if count > 1 else names[kind].removesuffix('s')}"
        for kind, count in counts.items()
        if count
    )
    typer.echo(f"Forgotten: {forgotten}." if forgotten else "There was nothing to forget.")
    if not servers_notice:
        typer.echo(_SERVERS_UNAWARE, err=True)


@documents.command(epilog=exit_codes(good="all were added", bad="one could not be, or there is no archive"))
def add(paths: Paths, *, config: ConfigOption, tenant: Tenant = "") -> None:
    """Add documents. A document of the same path is replaced.

    Documents whose files are no longer in a folder are listed, and stay until you remove them.
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

    errors, stored = run_on_memory(config, tenant, work, existing="none")
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
            typer.echo(
                f"{name}: the stored text of this document is still used; to remove it: {command}", err=True
            )
    if errors or not files:
        raise typer.Exit(1)


async def _add(archive: Archive, tenant: str, name: str, path: Path) -> str:
    """Adds a document; returns an error message, or an empty text."""
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

    for name in run_on_memory(config, tenant, work, existing="archive"):
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
            # NAME is the name of a document, or else the path of its file.
            removed = await archive.remove_document(tenant, name)
            if not removed and not await archive.remove_document(tenant, document_name(Path(name))):
                missing.append(name)
        return missing

    missing = run_on_memory(config, tenant, work, existing="archive")
    for name in missing:
        typer.echo(f"There is no document '{name}'.", err=True)
    if missing:
        raise typer.Exit(1)
