"""Pipelines and cases made from YAML, without a server."""

from pathlib import Path
from typing import Any

from proxy.settings.build_pipelines import build_pipelines
from proxy.settings.filter_registry import FilterRegistry
from proxy.settings.load import check_config, load
from proxy.trial import testing
from proxy.trial.testing import Result
from proxy.turn.pipeline import Pipeline

SHIPPED = FilterRegistry()
UPSTREAM = "upstreams: {main: {base_url: 'practice:'}}\n"


def pipeline_of(path: Path, config: str, shelf: FilterRegistry = SHIPPED, name: str = "default") -> Pipeline:
    """A pipeline of a configuration that is written to ``path``."""
    path.write_text(config)
    return build_pipelines(check_config(path, {}, shelf).valid())[name]


def results_of(path: Path, **environ: Any) -> list[Result]:
    """What comes of every case of a file."""
    settings = load(path, environ)
    ready = build_pipelines(settings)
    return [
        testing.run_test(case, ready[name], pipeline.answer)
        for name, pipeline in settings.pipelines.items()
        for case in pipeline.tests
    ]
