"""What the commands on memory share: which configuration, whose tenant, and an end that closes everything."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from proxy import assembly
from proxy.commands.terminal import told
from proxy.configuration.load import load
from proxy.configuration.settings import Settings
from proxy.errors import TurnkeeperError
from proxy.memory.store import StoreError
from proxy.pipeline import Archiving, Memory

T = TypeVar("T")

Where = Annotated[Path, typer.Option("--config", metavar="CONFIG", help="A YAML file.")]
Tenant = Annotated[
    str, typer.Option("--tenant", metavar="NAME", help="The name of a key; needed where there are several.")
]
USUAL = Path("config/agora.yaml")


def remembered(config: Path, tenant: str, work: Callable[[Memory, str], Awaitable[T]]) -> T:
    """What comes of work on a configuration's memory, under a tenant; nothing is served meanwhile."""
    with told():
        settings = load(config, os.environ)
        return asyncio.run(_worked(settings, _tenant(settings, tenant), work))


def archiving_of(memory: Memory) -> Archiving:
    """The archive; raises TurnkeeperError where there is none."""
    if memory.archiving is None:
        raise TurnkeeperError("There is no archive: keep sessions in SQL, or set ARCHIVE_URL.")
    return memory.archiving


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
