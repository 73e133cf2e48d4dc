"""What the commands on memory share: which configuration, whose tenant, and an end that closes everything."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Annotated, Final, TypeVar

import typer

from proxy import assembly
from proxy.commands.configured import configured
from proxy.commands.terminal import told
from proxy.configuration.settings import Memory as MemorySettings
from proxy.configuration.settings import Settings
from proxy.errors import TurnkeeperError
from proxy.memory.faults import StoreError
from proxy.remembering import Archiving, Memory

T = TypeVar("T")

Tenant = Annotated[
    str, typer.Option("--tenant", metavar="NAME", help="The name of a key; needed where there are several.")
]
_UNSEEN: Final = (
    "Sessions are kept in the server's own process (memory:), which a command cannot see. Ask the server:"
    " GET /v1/memory/users/ID/export, DELETE /v1/memory/users/ID or /v1/memory/sessions/ID."
)
_LOOK_THERE: Final = "Say this in the server's folder, with the server's configuration and environment."


def everywhere(memory: MemorySettings) -> tuple[str, ...]:
    """Each address at which anything is held."""
    return (memory.sessions.get_secret_value(), memory.archive_url)


def archived(memory: MemorySettings) -> tuple[str, ...]:
    """The archive's address, or an empty one."""
    return (memory.archive_url,)


def nowhere(_: MemorySettings) -> tuple[str, ...]:
    """No address: what is not there yet is made."""
    return ()


def remembered(
    config: Path,
    tenant: str,
    work: Callable[[Memory, str], Awaitable[T]],
    *,
    there: Callable[[MemorySettings], Iterable[str]] = everywhere,
) -> T:
    """What comes of work on a configuration's memory, under a tenant; nothing is served meanwhile.

    ``there`` says which addresses have to hold something already: in a database that is made for the
    question, nothing would be found, and nothing removed.
    """
    with told():
        settings = configured(config)
        whose = _tenant(settings, tenant)
        for url in there(settings.memory) if settings.memory else ():
            _see(url)
        return asyncio.run(_worked(settings, whose, work))


def archiving_of(memory: Memory) -> Archiving:
    """The archive; raises TurnkeeperError where there is none."""
    if memory.archiving is None:
        raise TurnkeeperError("There is no archive: keep sessions in SQL, or set ARCHIVE_URL.")
    return memory.archiving


def _see(url: str) -> None:
    if url == "memory:":
        raise TurnkeeperError(_UNSEEN)
    path = Path(url.removeprefix("sqlite:"))
    if url.startswith("sqlite:") and not path.exists():
        raise TurnkeeperError(f"There is no database at {path.absolute()}. {_LOOK_THERE}")


async def _worked(settings: Settings, tenant: str, work: Callable[[Memory, str], Awaitable[T]]) -> T:
    memory = assembly.remembered(settings)
    if memory is None:
        raise TurnkeeperError("Nothing is remembered here; set 'memory:' in the configuration.")
    try:
        return await work(memory, tenant)
    except StoreError as error:
        raise TurnkeeperError(f"Memory does not answer: {error}") from None
    finally:
        await memory.aclose()


def _tenant(settings: Settings, named: str) -> str:
    known = assembly.tenants(settings)
    if named and named not in known:
        raise TurnkeeperError(f"There is no key named '{named}'; there are: {', '.join(known)}.")
    if not named and len(known) > 1:
        raise TurnkeeperError(f"Say whose memory with --tenant: {', '.join(known)}.")
    return named or known[0]
