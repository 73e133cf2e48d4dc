import asyncio
import logging
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final

import typer

from proxy.background.worker import ALONE_EVERY
from proxy.commands.terminal import DEFAULT_CONFIG, ConfigArgument, load_configured, reported_errors
from proxy.errors import ConfigError
from proxy.observe.log import logging_to
from proxy.runtime import Generation, Runtime
from proxy.server import listening, process, signals
from proxy.server.app import build_app
from proxy.server.listening import listen
from proxy.server.reload import Reload
from proxy.server.workers import Workers, check_workers
from proxy.settings.build import build_runtime
from proxy.settings.memory import Memory
from proxy.settings.settings import Settings
from proxy.version import VERSION

_log = logging.getLogger("turnkeeper")
_NOT_SHARED: Final = (
    "sessions are kept in the server's own process (memory:), which does what there is to do itself;"
    " set MEMORY_URL to a place that both can reach."
)
Loaded = tuple[Settings, Runtime]


def serve(
    config: ConfigArgument = DEFAULT_CONFIG,
    *,
    reload: Annotated[bool, typer.Option("--reload", help="Follow changes of the file.")] = False,
    workers: Annotated[int, typer.Option(min=1, max=64, help="How many processes serve it as one.")] = 1,
) -> None:
    """Serve a configuration until SIGTERM or SIGINT; SIGHUP reads it again."""
    signals.hold(signals.AGAIN)
    listening.raise_file_limit()
    with reported_errors():
        settings = load_configured(config)
        check_workers(settings, workers)
        app = build_app(settings, os.environ)
        sockets = listen(settings.listen.host, settings.listen.port)
    signals.hold()
    typer.echo(greeting(settings, sockets[0].getsockname()[1]))
    if workers > 1:
        well = Workers(config, settings, os.environ, workers).serve(sockets, watch=reload)
        raise typer.Exit(0 if well else 1)
    again = Reload(app, settings, config, os.environ)
    process.serve(app, again, settings, sockets, [again.watch] if reload else [])


def greeting(settings: Settings, port: int) -> str:
    """Where a configuration is served, who answers, and what is missing."""
    host = settings.listen.host
    lines = [f"Turnkeeper {VERSION} on http://{f'[{host}]' if ':' in host else host}:{port}"]
    for name, pipeline in settings.pipelines.items():
        first = settings.upstreams[pipeline.upstreams[0]]
        model = "the practice model; set UPSTREAM_BASE_URL for a real one"
        lines.append(f"  {name} → {model if first.base_url == 'practice:' else first.base_url}")
    return "\n".join([*lines, *_missing(settings.memory)])


def _missing(memory: Memory | None) -> Iterator[str]:
    if memory is None:
        yield "  no memory: nothing is remembered; set 'memory:' in the configuration"
    elif not memory.archive_url:
        yield f"  no archive: {_no_archive(memory)}"


def _no_archive(memory: Memory) -> str:
    if memory.archive.keep == "off":
        return "it is switched off"
    return "sessions are not kept in SQL; set ARCHIVE_URL to have turns outlive them"


def worker(config: ConfigArgument = DEFAULT_CONFIG) -> None:
    """Do what no caller waits for, beside servers that have `work: false`, until SIGTERM or SIGINT.

    SIGHUP reads the configuration again.
    """
    signals.hold(signals.AGAIN)
    with reported_errors():
        read = _read(config)
    asyncio.run(_work(config, read))


def _read(config: Path) -> Loaded:
    settings = load_configured(config)
    parts = build_runtime(settings, os.environ)
    if settings.memory is None or parts.worker is None:
        raise ConfigError(f"{config}: nothing is remembered, so there is nothing to do; set 'memory:'.")
    if settings.memory.sessions.get_secret_value() == "memory:":
        raise ConfigError(f"{config}: {_NOT_SHARED}")
    return settings, parts


async def _work(config: Path, read: Loaded | None) -> None:
    loop, signs = asyncio.get_running_loop(), asyncio.Queue[int]()
    for sign in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(sign, signs.put_nowait, sign)
    signals.release()
    typer.echo("Turnkeeper works in the background.")
    while read:
        settings, parts = read
        with logging_to(sys.stderr, form=settings.log.format, level=settings.log.level):
            era = Generation(parts)
            era.start_worker(every=ALONE_EVERY)
            read = await _next(config, signs)
            await era.close()


async def _next(config: Path, signs: "asyncio.Queue[int]") -> Loaded | None:
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
