"""What the commands on memory share: which configuration, whose tenant, and an end that closes everything."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import msgspec
import typer

from proxy.commands.terminal import DEFAULT_CONFIG, ConfigOption, load_configured, reported_errors, write_json
from proxy.errors import TurnkeeperError
from proxy.memory.errors import StoreError, UnreadableSessions
from proxy.memory.memory import Archiving, Memory
from proxy.memory.privacy import PrivacyRegistry
from proxy.memory.stores.store import Owner
from proxy.settings.build import build_memory, tenant_names
from proxy.settings.memory import Memory as MemorySettings
from proxy.settings.settings import Settings

T = TypeVar("T")
Tenant = Annotated[
    str, typer.Option("--tenant", metavar="NAME", help="The name of a key; needed where there are several.")
]
_UNSEEN: Final = (
    "Sessions are kept in the server's own process (memory:), which a command cannot see. Ask the server:"
    " GET /v1/memory/users/ID/export, DELETE /v1/memory/users/ID or /v1/memory/sessions/ID."
)
_LOOK_THERE: Final = "Say this in the server's folder, with the server's configuration and environment."
User = Annotated[str, typer.Argument(metavar="USER", help="The user's id.")]
MaybeUser = Annotated[str, typer.Argument(metavar="[USER]", help="The user's id.")]
_UNHEARD: Final = (
    "Without an archive, servers that run do not hear of this: the turns that they keep for the web page go"
    " when newer ones come, or by DELETE /v1/memory/users/ID or /v1/memory/sessions/ID to each of them."
)
_ALL_ELSE: Final = (
    "All that can be read of them is removed. These cannot be read, and may hold words of theirs:"
)
_WAYS_OUT: Final = (
    "Give back the key that they were encrypted with, or remove each by 'turnkeeper forget --session ID', or"
    " wait until they expire; then say this again."
)
Session = Annotated[str, typer.Option("--session", metavar="ID", help="A session alone, whoever's it is.")]


def everywhere(memory: MemorySettings) -> tuple[str, ...]:
    """Each address at which anything is held."""
    return (memory.sessions.get_secret_value(), memory.archive_url)


def archived(memory: MemorySettings) -> tuple[str, ...]:
    """The archive's address, or an empty one."""
    return (memory.archive_url,)


def nowhere(_: MemorySettings) -> tuple[str, ...]:
    """No address: what is not there yet is made."""
    return ()


def run_on_memory(
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
    with reported_errors():
        settings = load_configured(config)
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
    memory = build_memory(settings)
    if memory is None:
        raise TurnkeeperError("Nothing is remembered here; set 'memory:' in the configuration.")
    try:
        return await work(memory, tenant)
    except StoreError as error:
        raise TurnkeeperError(f"Memory does not answer: {error}") from None
    finally:
        await memory.aclose()


def _tenant(settings: Settings, named: str) -> str:
    known = tenant_names(settings)
    if named and named not in known:
        raise TurnkeeperError(f"There is no key named '{named}'; there are: {', '.join(known)}.")
    if not named and len(known) > 1:
        raise TurnkeeperError(f"Say whose memory with --tenant: {', '.join(known)}.")
    return named or known[0]


def export(user: User, *, config: ConfigOption = DEFAULT_CONFIG, tenant: Tenant = "") -> None:
    """Write all that is held of a person, as JSON: sessions, turns and facts."""

    async def work(memory: Memory, whose: str) -> dict[str, Any]:
        return await memory.privacy.exported(Owner(whose, user))

    write_json(msgspec.json.encode(run_on_memory(config, tenant, work)))


def forget(
    user: MaybeUser = "", *, session: Session = "", config: ConfigOption = DEFAULT_CONFIG, tenant: Tenant = ""
) -> None:
    """Remove all that is held of a person, or of one session, for good."""
    if bool(user) == bool(session):
        raise typer.BadParameter("name a user, or a session with --session")

    async def work(memory: Memory, whose: str) -> tuple[Mapping[str, int], bool]:
        people, is_heard = memory.privacy, memory.archiving is not None
        if user:
            return await _forgotten(people, Owner(whose, user)), is_heard
        return await people.forget_session(whose, session), is_heard

    count, is_heard = run_on_memory(config, tenant, work)
    told = ", ".join(_counted(kind, many) for kind, many in count.items() if many)
    typer.echo(f"Forgotten: {told}." if told else "There was nothing to forget.")
    if not is_heard:
        typer.echo(_UNHEARD, err=True)


def _counted(kind: str, many: int) -> str:
    """So many of something that an export has under its plural."""
    name = kind.replace("_", " ")
    return f"{many} {name if many > 1 else name.removesuffix('s')}"


async def _forgotten(people: PrivacyRegistry, person: Owner) -> Mapping[str, int]:
    try:
        return await people.forget(person)
    except UnreadableSessions as fault:
        left = "".join(f"\n  {session}" for session in fault.sessions)
        raise TurnkeeperError(f"{_ALL_ELSE}{left}\n{_WAYS_OUT}") from None
