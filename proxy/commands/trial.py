"""``explain`` and ``test``: a configuration tried without a model."""

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
from proxy.trial import render
from proxy.trial.explain import explain_request, parse_header, request_from_file
from proxy.trial.testing import Result, run_test


def explain(
    config: Config,
    request: Annotated[
        Path,
        typer.Argument(
            metavar="REQUEST", help="A request's body as JSON, or {headers, path, body}; - reads stdin."
        ),
    ],
    *,
    pipeline: Annotated[str, typer.Option(help="Which pipeline it goes through.")] = "default",
    header: Annotated[
        list[str] | None, typer.Option(metavar="'NAME: VALUE'", help="A header of the request.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show what each filter does to a request, and what would be sent. Nothing is sent."""
    with reported_errors():
        try:
            headers = dict(map(parse_header, header or ()))
        except RequestError as error:
            raise usage_error(error.message) from None
        settings = load(config, os.environ)
        posted = request_from_file(_read(request, settings.listen.max_body), headers)
        pipelines = build_pipelines(settings)
        if pipeline not in pipelines:
            raise usage_error(f"no pipeline named '{pipeline}'; available: {', '.join(pipelines)}")
        explanation = explain_request(
            posted, pipelines[pipeline], time.time(), remembers=settings.memory is not None
        )
        if as_json:
            write_json(msgspec.json.encode(explanation))
        else:
            write_lines(render.render_explanation(explanation, timed=sys.stdout.isatty()), sys.stdout)
    if explanation.sent is None:
        raise typer.Exit(1)


def _read(path: Path, max_bytes: int) -> bytes:
    try:
        with sys.stdin.buffer if str(path) == "-" else path.open("rb") as file:
            data = file.read(max_bytes + 1)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "no file"
        raise RequestError(f"{path}: cannot be read: {why}") from None
    if len(data) > max_bytes:
        raise RequestError(f"{path}: has more than {max_bytes} bytes; 'listen.max_body' sets the limit.")
    return data


def run_tests(files: Files, *, as_json: Json = False) -> None:
    """Run the test cases of configurations, under 'tests' of each pipeline."""
    results: dict[str, list[Result]] = {}
    with reported_errors():
        for file in files:
            settings = load(file, os.environ)
            built = build_pipelines(settings)
            results[str(file)] = [
                run_test(test, built[name], pipeline.answer)
                for name, pipeline in settings.pipelines.items()
                for test in pipeline.tests
            ]
    if as_json:
        write_json(render.encode_results(results))
    else:
        write_lines(render.render_results(results), sys.stdout)
    if any(result.failures for of_file in results.values() for result in of_file):
        raise typer.Exit(1)
