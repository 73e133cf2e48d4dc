"""``export`` and ``forget``, and what all commands on memory share."""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import msgspec
import typer

from proxy.commands.terminal import ConfigOption, load_configured, reported_errors, write_json
from proxy.errors import TurnkeeperError
from proxy.memory.errors import StoreError, UnreadableSessions
from proxy.memory.memory import Archiving, Memory
from proxy.memory.stores.store import Owner
from proxy.settings.build import build_memory, tenant_names
from proxy.settings.memory import Memory as MemorySettings

T = TypeVar("T")

User = Annotated[str, typer.Argument(metavar="USER", help="The user's id.")]
Session = Annotated[str, typer.Option("--session", metavar="ID", help="One session, of any user.")]
Tenant = Annotated[
    str, typer.Option("--tenant", metavar="NAME", help="The name of a key; needed where there are several.")
]

_NOT_SHARED: Final = (
    "Sessions are kept in the server's own process (memory:), which a command cannot see. Ask the server:"
    " GET /v1/memory/users/ID/export, DELETE /v1/memory/users/ID or /v1/memory/sessions/ID."
)
_OTHER_FOLDER: Final = "Run this in the server's folder, with its configuration and environment."
_SERVERS_UNAWARE: Final = (
    "Without an archive, servers that run do not hear of this: the turns that they keep for the web page go"
    " when newer ones come, or by DELETE /v1/memory/users/ID or /v1/memory/sessions/ID to each of them."
)
_UNREADABLE: Final = (
    "All that can be read of them is removed. These cannot be read, and may hold words of theirs:"
)
_UNREADABLE_ADVICE: Final = (
    "Give back the key that they were encrypted with, or remove each by 'turnkeeper forget --session ID', or"
    " wait until they expire; then say this again."
)


def all_addresses(memory: MemorySettings) -> tuple[str, ...]:
    """The addresses of the sessions and of the archive, which is empty where there is none."""
    return (memory.sessions.get_secret_value(), memory.archive_url)


def archive_address(memory: MemorySettings) -> tuple[str, ...]:
    """The address of the archive, or an empty one."""
    return (memory.archive_url,)


def no_address(_: MemorySettings) -> tuple[str, ...]:
    """No address, for work that may create its database."""
    return ()


def run_on_memory(
    config: Path,
    tenant: str,
    work: Callable[[Memory, str], Awaitable[T]],
    *,
    existing: Callable[[MemorySettings], tuple[str, ...]] = all_addresses,
) -> T:
    """Run work on a configuration's memory under a tenant, and return its result.

    The addresses in ``existing`` must have a database already: in a new one nothing would be found, and
    nothing removed.
    """
    with reported_errors():
        settings = load_configured(config)
        tenants = tenant_names(settings)
        if tenant and tenant not in tenants:
            raise TurnkeeperError(f"no key named '{tenant}'; available: {', '.join(tenants)}")
        if not tenant and len(tenants) > 1:
            raise TurnkeeperError(f"several tenants; name one with --tenant; available: {', '.join(tenants)}")
        for url in existing(settings.memory) if settings.memory else ():
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
    """The archive of a memory. Raises TurnkeeperError where there is none."""
    if memory.archiving is None:
        raise TurnkeeperError("there is no archive; store sessions in SQL, or set ARCHIVE_URL")
    return memory.archiving


def export(user: User, *, config: ConfigOption, tenant: Tenant = "") -> None:
    """Write all that is stored of a user, as JSON: sessions, turns and facts."""

    async def work(memory: Memory, tenant: str) -> dict[str, Any]:
        return await memory.privacy.export(Owner(tenant, user))

    write_json(msgspec.json.encode(run_on_memory(config, tenant, work)))


def forget(
    user: User = "",
    *,
    session: Session = "",
    config: ConfigOption,
    tenant: Tenant = "",
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask first, as on a terminal.")] = False,
) -> None:
    """Delete all that is stored of a user, or one session, for good; on a terminal it asks first."""
    if bool(user) == bool(session):
        raise typer.BadParameter("name a user, or a session with --session")
    if not yes and sys.stdin.isatty():
        what = f"the session '{session}'" if session else f"all that is stored of '{user}'"
        typer.confirm(f"Delete {what} for good?", abort=True)

    async def work(memory: Memory, tenant: str) -> tuple[Mapping[str, int], bool]:
        servers_notice = memory.archiving is not None
        if session:
            return await memory.privacy.forget_session(tenant, session), servers_notice
        try:
            return await memory.privacy.forget(Owner(tenant, user)), servers_notice
        except UnreadableSessions as error:
            unreadable = "".join(f"\n  {each}" for each in error.sessions)
            raise TurnkeeperError(f"{_UNREADABLE}{unreadable}\n{_UNREADABLE_ADVICE}") from None

    counts, servers_notice = run_on_memory(config, tenant, work)
    # The kinds are plurals, as an export has them.
    names = {kind: kind.replace("_", " ") for kind in counts}
    forgotten = ", ".join(
        f"{count} {names[kind] if count > 1 else names[kind].removesuffix('s')}"
        for kind, count in counts.items()
        if count
    )
    typer.echo(f"Forgotten: {forgotten}." if forgotten else "There was nothing to forget.")
    if not servers_notice:
        typer.echo(_SERVERS_UNAWARE, err=True)
