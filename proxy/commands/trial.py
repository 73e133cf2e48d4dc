import os
import sys
import time
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from proxy.commands.terminal import Config, Files, Json, reported_errors, usage_error, write_json, write_lines
from proxy.errors import RequestError
from proxy.settings.build_pipelines import build_pipelines
from proxy.settings.load import load
from proxy.settings.settings import Settings
from proxy.trial import render, testing
from proxy.trial.explain import explain_request, parse_header, request_from_file
from proxy.turn.pipeline import Pipeline


def explain(
    config: Config,
    request: Annotated[
        Path, typer.Argument(help="A request's body as JSON, or {headers, path, body}; - reads stdin.")
    ],
    *,
    pipeline: Annotated[str, typer.Option(help="Which pipeline it goes through.")] = "default",
    header: Annotated[
        list[str] | None, typer.Option(metavar="'NAME: VALUE'", help="A header of the request.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Tell what each filter does to a request, and what would be sent. Nothing is sent."""
    with reported_errors():
        headers = dict(map(_header, header or ()))
        settings = load(config, os.environ)
        posted = request_from_file(_read(request, settings.listen.max_body), headers)
        remembers = settings.memory is not None
        explanation = explain_request(posted, _pipeline(settings, pipeline), time.time(), remembers=remembers)
        if as_json:
            write_json(msgspec.json.encode(explanation))
        else:
            write_lines(render.render_explanation(explanation, timed=sys.stdout.isatty()), sys.stdout)


def _pipeline(settings: Settings, name: str) -> Pipeline:
    ready = build_pipelines(settings)
    if name not in ready:
        raise usage_error(f"There is no pipeline '{name}'; there are: {', '.join(ready)}.")
    return ready[name]


def _header(given: str) -> tuple[str, str]:
    try:
        return parse_header(given)
    except RequestError as error:
        raise usage_error(error.message) from None


def _read(path: Path, most: int) -> bytes:
    try:
        with sys.stdin.buffer if str(path) == "-" else path.open("rb") as file:
            data = file.read(most + 1)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "no file"
        raise RequestError(f"{path}: cannot be read: {why}") from None
    if len(data) > most:
        raise RequestError(f"{path}: has more than {most} bytes; 'listen.max_body' sets the limit.")
    return data


def try_cases(files: Files, *, as_json: Json = False) -> None:
    """Try the cases that stand beside the pipelines of configurations, under 'tests'."""
    with reported_errors():
        results = {str(file): _run_tests(load(file, os.environ)) for file in files}
    if as_json:
        write_json(render.encode_results(results))
    else:
        write_lines(render.render_results(results), sys.stdout)
    if any(result.failures for tried in results.values() for result in tried):
        raise typer.Exit(1)


def _run_tests(settings: Settings) -> list[testing.Result]:
    ready = build_pipelines(settings)
    return [
        testing.run_test(case, ready[name], pipeline.answer)
        for name, pipeline in settings.pipelines.items()
        for case in pipeline.tests
    ]
