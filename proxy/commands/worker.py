import asyncio
import logging
import os
import signal
import sys
from pathlib import Path
from typing import Final

import typer

from proxy import assembly
from proxy.background.worker import ALONE_EVERY
from proxy.commands.configured import USUAL, Served, configured
from proxy.commands.terminal import told
from proxy.configuration.settings import Settings
from proxy.era import Era
from proxy.errors import ConfigError
from proxy.observe.log import logging_to
from proxy.parts import Parts
from proxy.serving import signals

_log = logging.getLogger("turnkeeper")

_UNSEEN: Final = (
    "sessions are kept in the server's own process (memory:), which does what there is to do itself;"
    " set MEMORY_URL to a place that both can reach."
)

Read = tuple[Settings, Parts]


def worker(config: Served = USUAL) -> None:
    """Do what no caller waits for, beside servers that have `work: false`, until SIGTERM or SIGINT.

    SIGHUP reads the configuration again.
    """
    signals.hold(signals.AGAIN)
    with told():
        read = _read(config)
    asyncio.run(_work(config, read))


def _read(config: Path) -> Read:
    settings = configured(config)
    parts = assembly.parts(settings, os.environ)
    if settings.memory is None or parts.worker is None:
        raise ConfigError(f"{config}: nothing is remembered, so there is nothing to do; set 'memory:'.")
    if settings.memory.sessions.get_secret_value() == "memory:":
        raise ConfigError(f"{config}: {_UNSEEN}")
    return settings, parts


async def _work(config: Path, read: Read | None) -> None:
    loop, signs = asyncio.get_running_loop(), asyncio.Queue[int]()
    for sign in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(sign, signs.put_nowait, sign)
    signals.release()
    typer.echo("Turnkeeper works in the background.")
    while read:
        settings, parts = read
        with logging_to(sys.stderr, form=settings.log.format, level=settings.log.level):
            era = Era(parts)
            era.begin(every=ALONE_EVERY)
            read = await _next(config, signs)
            await era.end()


async def _next(config: Path, signs: "asyncio.Queue[int]") -> Read | None:
    """What to go on with after SIGHUP, which changes nothing where it is wrong; nothing after the others."""
    while await signs.get() == signal.SIGHUP:
        try:
            read = _read(config)
        except ConfigError as error:
            _log.error("The configuration stays as it was:\n%s", error.message)
        except (Exception, SystemExit):  # noqa: BLE001 - what users bring may do anything when it is read
            _log.exception("The configuration stays as it was; the new one could not be read")
        else:
            _log.info("The configuration was read again: %s", config)
            return read
    return None
