import os
from pathlib import Path
from typing import Annotated

import typer

from proxy import assembly, server
from proxy.commands.terminal import Config, told
from proxy.configuration.load import load
from proxy.configuration.settings import Memory, Settings
from proxy.reload import Reload
from proxy.version import VERSION


def serve(
    config: Config = Path("config/agora.yaml"),
    *,
    reload: Annotated[bool, typer.Option("--reload", help="Follow changes of the file.")] = False,
) -> None:
    """Serve a configuration until SIGTERM or SIGINT; SIGHUP reads it again."""
    with told():
        settings = load(config, os.environ)
        app = assembly.app(settings, os.environ)
    typer.echo(_greeting(settings))
    again = Reload(app, settings, config, os.environ)
    server.serve(app, again, host=settings.listen.host, port=settings.listen.port, watch=reload)


def _greeting(settings: Settings) -> str:
    lines = [f"Turnkeeper {VERSION} on http://{settings.listen.host}:{settings.listen.port}"]
    for name, pipeline in settings.pipelines.items():
        first = settings.upstreams[pipeline.upstreams[0]]
        model = "the practice model; set UPSTREAM_BASE_URL for a real one"
        lines.append(f"  {name} → {model if first.base_url == 'practice:' else first.base_url}")
    if settings.memory and not settings.memory.archive_url:
        lines.append(f"  no archive: {_no_archive(settings.memory)}")
    return "\n".join(lines)


def _no_archive(memory: Memory) -> str:
    if memory.archive.keep == "off":
        return "it is switched off"
    return "sessions are not kept in SQL; set ARCHIVE_URL to have turns outlive them"
