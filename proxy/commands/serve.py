"""``serve`` and ``worker``: the processes that run until a signal ends them."""

import asyncio
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Final

import typer

from proxy.background.worker import ALONE_EVERY
from proxy.commands.terminal import ConfigArgument, load_configured, reported_errors
from proxy.errors import ConfigError
from proxy.runtime import Generation, Runtime
from proxy.server import background, listening, process, signals
from proxy.server.app import build_app
from proxy.server.listening import listen
from proxy.server.reload import Reload
from proxy.server.workers import CAN_FORK, Workers, check_workers
from proxy.settings.build import build_runtime
from proxy.settings.settings import Settings
from proxy.settings.values import PRACTICE
from proxy.version import VERSION

_log = logging.getLogger("turnkeeper")


def serve(
    config: ConfigArgument,
    *,
    reload: Annotated[bool, typer.Option("--reload", help="Follow changes of the file.")] = False,
    workers: Annotated[int, typer.Option(min=1, max=64, help="How many processes serve it as one.")] = 1,
) -> None:
    """Serve a configuration until SIGTERM or SIGINT; SIGHUP reads it again."""
    signals.block(signals.RELOAD)
    listening.raise_file_limit()
    process.return_large_blocks()
    with reported_errors():
        settings = load_configured(config)
        check_workers(settings, workers)
        app = build_app(settings, os.environ)
        sockets = listen(settings.listen.host, settings.listen.port)
    signals.block()
    typer.echo(greeting(settings, sockets[0].getsockname()[1]))
    if CAN_FORK:
        succeeded = Workers(config, settings, os.environ, workers).serve(sockets, watch=reload)
        raise typer.Exit(0 if succeeded else 1)
    reloading = Reload(app, settings, config, os.environ)
    process.serve(app, reloading, settings, sockets, [reloading.watch] if reload else [])


def greeting(settings: Settings, port: int) -> str:
    """The address, the model of each pipeline, and a note on memory that is missing."""
    host, memory = settings.listen.host, settings.memory
    lines = [f"Turnkeeper {VERSION} on http://{f'[{host}]' if ':' in host else host}:{port}"]
    for name, pipeline in settings.pipelines.items():
        address = settings.upstreams[pipeline.upstreams[0]].base_url
        practice = "the practice model; set UPSTREAM_BASE_URL for a real one"
        lines.append(f"  {name} → {practice if address == PRACTICE else address}")
    if memory is None:
        lines.append("  no memory: nothing is remembered; set 'memory:' in the configuration")
    elif memory.archive.keep == "off":
        lines.append("  no archive: it is switched off")
    elif not memory.archive_url:
        lines.append("  no archive: sessions are not kept in SQL; set ARCHIVE_URL to have turns outlive them")
    if memory and memory.sessions.get_secret_value() == "memory:":
        lines.append("  sessions are in the server's own process (memory:), and so is background work")
    return "\n".join(lines)


# --- the worker

_NOT_SHARED: Final = (
    "sessions are kept in the server's own process (memory:), which does what there is to do itself;"
    " set MEMORY_URL to a place that both can reach."
)


def worker(config: ConfigArgument) -> None:
    """Do what no caller waits for, beside servers that have `work: false`, until SIGTERM or SIGINT.

    SIGHUP reads the configuration again.
    """
    signals.block(signals.RELOAD)
    process.return_large_blocks()
    with reported_errors():
        loaded = _load(config)
    typer.echo("Turnkeeper works in the background.")
    asyncio.run(background.work(*loaded, lambda: _reload(config), _jobs_alone))


def _load(config: Path) -> tuple[Settings, Runtime]:
    settings = load_configured(config)
    runtime = build_runtime(settings, os.environ)
    if settings.memory is None or runtime.worker is None:
        raise ConfigError(f"{config}: nothing is remembered, so there is nothing to do; set 'memory:'.")
    if settings.memory.sessions.get_secret_value() == "memory:":
        raise ConfigError(f"{config}: {_NOT_SHARED}")
    return settings, runtime


@asynccontextmanager
async def _jobs_alone(generation: Generation) -> AsyncIterator[None]:
    generation.start_worker(every=ALONE_EVERY)
    yield


def _reload(config: Path) -> tuple[Settings, Runtime] | None:
    """The configuration read again; ``None`` where it is wrong, which is logged."""
    try:
        loaded = _load(config)
    except ConfigError as error:
        _log.error("The configuration stays as it was:\n%s", error.message)
    except (Exception, SystemExit):  # noqa: BLE001 - a user's own filter may raise anything
        _log.exception("The configuration stays as it was; the new one could not be read")
    else:
        _log.info("The configuration was read again: %s", config)
        return loaded
    return None
