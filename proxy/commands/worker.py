import asyncio
import logging
import os
import signal
from pathlib import Path

import typer

from proxy import assembly
from proxy.commands.terminal import Config, told
from proxy.configuration.load import load
from proxy.era import Era, Parts
from proxy.errors import ConfigError
from proxy.work import ALONE_EVERY


def worker(config: Config = Path("config/agora.yaml")) -> None:
    """Do what no caller waits for, beside servers that have `work: false`, until SIGTERM or SIGINT."""
    with told():
        parts = assembly.parts(load(config, os.environ), os.environ)
        if parts.worker is None:
            raise ConfigError(f"{config}: nothing is remembered, so there is nothing to do; set 'memory:'.")
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    typer.echo("Turnkeeper works in the background.")
    asyncio.run(_work(parts))


async def _work(parts: Parts) -> None:
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    for sign in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(sign, ended.set)
    era = Era(parts)
    era.begin(every=ALONE_EVERY)
    await ended.wait()
    await era.end()
