"""``serve`` and ``worker``: the commands that run until a signal."""

import logging
import os
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Final

import typer

from proxy.commands.terminal import ConfigArgument, load_configured, load_with_hint, reported_errors
from proxy.errors import ConfigError
from proxy.runtime import Generation, Runtime
from proxy.server import background, process, signals
from proxy.server.app import build_app
from proxy.server.process import listen
from proxy.server.reload import Reload, read_again
from proxy.server.workers import CAN_FORK, Workers, check_workers
from proxy.settings.build import build_runtime, injects_last_calls
from proxy.settings.memory import MemorySettings
from proxy.settings.settings import Settings
from proxy.settings.values import PRACTICE
from proxy.version import VERSION

_log = logging.getLogger("turnkeeper")
_PLAIN_ADDRESS: Final = re.compile(
    r"[a-z+]+://(?:[^/?#]*@)?(?P<place>[\w.\[\]][\w.:,\[\]-]*(?:/[\w.-]*)?)(?:\?[^@]*)?"
)


def serve(
    config: ConfigArgument,
    *,
    reload: Annotated[
        bool, typer.Option("--reload", help="Reload the configuration when the file changes.")
    ] = False,
    workers: Annotated[int, typer.Option(min=1, max=64, help="Number of serving processes.")] = 1,
) -> None:
    """Run the server until SIGTERM or SIGINT. SIGHUP reads the configuration again."""
    signals.block(signals.RELOAD)
    process.raise_file_limit()
    process.return_large_blocks()
    with reported_errors():
        settings, warnings = load_with_hint(config)
        check_workers(settings, workers)
        app = build_app(settings, os.environ)
        sockets = listen(settings.listen.host, settings.listen.port)
    signals.block()
    typer.echo("\n  ".join([greeting(settings, sockets[0].getsockname()[1]), *map(str, warnings)]))
    if CAN_FORK:
        succeeded = Workers(config, settings, os.environ, workers).serve(sockets, watch=reload)
        raise typer.Exit(0 if succeeded else 1)
    reloading = Reload(app, settings, config, os.environ)
    process.serve(app, reloading, settings, sockets, [reloading.watch] if reload else [])


def greeting(settings: Settings, port: int) -> str:
    """The greeting: address, upstreams of pipelines, storage and its duration, and background requests."""
    host = settings.listen.host
    lines = [f"Turnkeeper {VERSION} on http://{f'[{host}]' if ':' in host else host}:{port}"]
    for name, pipeline in settings.pipelines.items():
        practice = "the practice model; set UPSTREAM_BASE_URL for a real one"
        addresses = [settings.upstreams[each].base_url for each in pipeline.upstreams]
        models = [practice if address == PRACTICE else address for address in addresses]
        lines.append(f"  {name} → {', then '.join(models)}")
    if settings.memory is None:
        lines.append("  no memory: nothing is stored; set 'memory:' in the configuration")
    else:
        lines += [f"  {line}" for line in _stored(settings.memory)]
        lines += [f"  {line}" for line in _background_requests(settings, settings.memory)]
    return "\n".join(lines)


def _stored(memory: MemorySettings) -> Iterator[str]:
    sessions, ttl = memory.sessions.get_secret_value(), _duration(memory.window.ttl)
    in_process = "the server's own process (memory:), and so is background work"
    place = in_process if sessions == "memory:" else shown_address(sessions)
    yield f"sessions: for {ttl} after their last turn, in {place}"
    if memory.archive.keep == "off":
        yield "no archive: it is switched off"
    elif memory.lacks_archive:
        yield memory.lacks_archive
    else:
        duration = (
            "for good" if memory.archive.keep == "forever" else f"for {_duration(memory.archive.seconds)}"
        )
        yield f"archive: every turn in {shown_address(memory.archive_url)}, {duration} (memory.archive.keep)"


def _background_requests(settings: Settings, memory: MemorySettings) -> Iterator[str]:
    """Yields a line for each upstream and model that serves other requests than those of turns."""
    purposes: dict[tuple[str, str], list[str]] = {}
    session_model = "the model that the session last used"
    tasks = (
        ("summaries", memory.summaries),
        ("notes on calls", memory.summaries if injects_last_calls(settings) else None),
        ("facts", memory.facts if memory.keeps_facts else None),
    )
    for what, task in tasks:
        if task:
            model = task.model or settings.upstreams[task.upstream].model or session_model
            purposes.setdefault((task.upstream, model), []).append(what)
    aids = (("embeddings", memory.recall.embeddings), ("reranking", memory.recall.rerank))
    for what, aid in aids:
        if aid and memory.archive_url:
            model = aid.model or settings.upstreams[aid.upstream].model or "its default model"
            purposes.setdefault((aid.upstream, model), []).append(what)
    for (upstream, model), uses in purposes.items():
        if settings.upstreams[upstream].base_url == PRACTICE:
            if "facts" in uses:
                yield "background: the practice model extracts no facts, and summaries quote the turns"
            continue
        yield f"background: {upstream} is asked for {' and '.join(uses)} ({model})"


def _duration(seconds: float) -> str:
    for size, unit in ((86_400, "day"), (3600, "hour"), (60, "minute"), (1, "second")):
        count, rest = divmod(seconds, size)
        if count >= 1 and not rest:
            return f"{count:g} {unit}{'s' if count > 1 else ''}"
    return f"{seconds:g} seconds"


def shown_address(url: str) -> str:
    """Returns an address without its password; only the scheme if the password cannot be told apart."""
    scheme = url.partition(":")[0]
    if scheme == "sqlite":
        return url
    plain = _PLAIN_ADDRESS.fullmatch(url)
    return f"{scheme}://{plain['place']}" if plain else f"{scheme}:"


# --- the worker

_NOT_SHARED: Final = (
    "sessions are kept in the server's own process (memory:), which does the background work itself;"
    " set MEMORY_URL to a place that both can reach."
)


def worker(config: ConfigArgument) -> None:
    """Run the background jobs of servers that have `work: false`, until SIGTERM or SIGINT.

    SIGHUP reads the configuration again.
    """
    signals.block(signals.RELOAD)
    process.return_large_blocks()
    with reported_errors():
        loaded = _load(config)
    typer.echo("Turnkeeper works in the background.")
    background.run(loaded, lambda: _reload(config), _jobs_alone)


def _load(config: Path) -> tuple[Settings, Runtime]:
    settings = load_configured(config)
    runtime = build_runtime(settings, os.environ)
    if settings.memory is None or runtime.worker is None:
        raise ConfigError(f"{config}: nothing is stored, so a worker has nothing to do; set 'memory:'.")
    if settings.memory.sessions.get_secret_value() == "memory:":
        raise ConfigError(f"{config}: {_NOT_SHARED}")
    return settings, runtime


@asynccontextmanager
async def _jobs_alone(generation: Generation) -> AsyncIterator[None]:
    generation.start_worker()
    yield


def _reload(config: Path) -> tuple[Settings, Runtime] | None:
    """Reads the configuration again; returns ``None`` for an invalid one, and logs the error."""
    loaded = read_again(lambda: _load(config))
    if loaded:
        _log.info("The configuration was read again: %s", config)
    return loaded
