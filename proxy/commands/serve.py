import os
from collections.abc import Iterator
from typing import Annotated

import typer

from proxy import assembly
from proxy.commands.configured import USUAL, Served, configured
from proxy.commands.terminal import told
from proxy.configuration.settings import Memory, Settings
from proxy.serving import files, fleet, server, signals
from proxy.serving.fleet import Fleet
from proxy.serving.listening import listen
from proxy.serving.reload import Reload
from proxy.version import VERSION


def serve(
    config: Served = USUAL,
    *,
    reload: Annotated[bool, typer.Option("--reload", help="Follow changes of the file.")] = False,
    workers: Annotated[int, typer.Option(min=1, max=64, help="How many processes serve it as one.")] = 1,
) -> None:
    """Serve a configuration until SIGTERM or SIGINT; SIGHUP reads it again."""
    signals.hold(signals.AGAIN)
    files.allow()
    with told():
        settings = configured(config)
        fleet.fit(settings, workers)
        app = assembly.app(settings, os.environ)
        sockets = listen(settings.listen.host, settings.listen.port)
    signals.hold()
    typer.echo(greeting(settings, sockets[0].getsockname()[1]))
    if workers > 1:
        well = Fleet(config, settings, os.environ, workers).serve(sockets, watch=reload)
        raise typer.Exit(0 if well else 1)
    again = Reload(app, settings, config, os.environ)
    server.serve(app, again, settings, sockets, [again.whenever_it_changes] if reload else [])


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
