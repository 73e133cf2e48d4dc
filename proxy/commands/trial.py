import os
import sys

import typer

from proxy import assembly
from proxy.commands.terminal import Files, Json, show, told, write_json
from proxy.configuration.load import load
from proxy.configuration.settings import Settings
from proxy.trial import cases, verdict


def try_cases(files: Files, *, as_json: Json = False) -> None:
    """Try the cases that stand beside the pipelines of configurations, under 'tests'."""
    with told():
        results = {str(file): _tried(load(file, os.environ)) for file in files}
    if as_json:
        write_json(verdict.encoded(results))
    else:
        show(verdict.told(results), sys.stdout)
    if any(result.failures for tried in results.values() for result in tried):
        raise typer.Exit(1)


def _tried(settings: Settings) -> list[cases.Result]:
    # Nothing is sent, so it does not matter by which proxy.
    ready = assembly.pipelines(settings, {})
    return [
        cases.tried(case, ready[name], pipeline.answer)
        for name, pipeline in settings.pipelines.items()
        for case in pipeline.tests
    ]
