"""Pipelines and cases made from YAML, without a server."""

from pathlib import Path
from typing import Any

from proxy import assembly
from proxy.configuration.load import load
from proxy.configuration.shelf import Shelf
from proxy.trial import cases
from proxy.trial.cases import Result
from proxy.turn.pipeline import Pipeline

SHIPPED = Shelf()
UPSTREAM = "upstreams: {main: {base_url: 'practice:'}}\n"


def pipeline_of(path: Path, config: str, shelf: Shelf = SHIPPED, name: str = "default") -> Pipeline:
    """A pipeline of a configuration that is written to ``path``."""
    path.write_text(config)
    return assembly.pipelines(load(path, {}, shelf), {})[name]


def results_of(path: Path, **environ: Any) -> list[Result]:
    """What comes of every case of a file."""
    settings = load(path, environ)
    ready = assembly.pipelines(settings, environ)
    return [
        cases.tried(case, ready[name], pipeline.answer)
        for name, pipeline in settings.pipelines.items()
        for case in pipeline.tests
    ]
