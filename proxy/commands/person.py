from collections.abc import Mapping
from typing import Annotated, Any, Final

import msgspec
import typer

from proxy.commands.configured import USUAL, Where
from proxy.commands.memory import Tenant, remembered
from proxy.commands.terminal import write_json
from proxy.errors import TurnkeeperError
from proxy.memory.faults import Unread
from proxy.memory.owner import Owner
from proxy.memory.people import People
from proxy.remembering import Memory

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


def export(user: User, *, config: Where = USUAL, tenant: Tenant = "") -> None:
    """Write all that is held of a person, as JSON: sessions, turns and facts."""

    async def work(memory: Memory, whose: str) -> dict[str, Any]:
        return await memory.people.exported(Owner(whose, user))

    write_json(msgspec.json.encode(remembered(config, tenant, work)))


def forget(
    user: MaybeUser = "", *, session: Session = "", config: Where = USUAL, tenant: Tenant = ""
) -> None:
    """Remove all that is held of a person, or of one session, for good."""
    if bool(user) == bool(session):
        raise typer.BadParameter("name a user, or a session with --session")

    async def work(memory: Memory, whose: str) -> tuple[Mapping[str, int], bool]:
        people, is_heard = memory.people, memory.archiving is not None
        if user:
            return await _forgotten(people, Owner(whose, user)), is_heard
        return await people.forget_session(whose, session), is_heard

    count, is_heard = remembered(config, tenant, work)
    told = ", ".join(_counted(kind, many) for kind, many in count.items() if many)
    typer.echo(f"Forgotten: {told}." if told else "There was nothing to forget.")
    if not is_heard:
        typer.echo(_UNHEARD, err=True)


def _counted(kind: str, many: int) -> str:
    """So many of something that an export has under its plural."""
    name = kind.replace("_", " ")
    return f"{many} {name if many > 1 else name.removesuffix('s')}"


async def _forgotten(people: People, person: Owner) -> Mapping[str, int]:
    try:
        return await people.forget(person)
    except Unread as fault:
        left = "".join(f"\n  {session}" for session in fault.sessions)
        raise TurnkeeperError(f"{_ALL_ELSE}{left}\n{_WAYS_OUT}") from None
