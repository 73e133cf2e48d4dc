"""``explain``, ``test`` and ``replay``: the commands that try a configuration without a model."""

import os
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from proxy.commands.memory import Tenant, run_on_memory
from proxy.commands.terminal import (
    Config,
    Files,
    Json,
    default_config,
    load_configured,
    reported_errors,
    unwritable,
    usage_error,
    write_json,
    write_lines,
)
from proxy.errors import ConfigError, RequestError, TurnkeeperError
from proxy.memory.memory import Memory
from proxy.memory.stores.store import Key
from proxy.settings.build_pipelines import build_pipelines
from proxy.settings.load import load
from proxy.trial import render
from proxy.trial.explain import explain_request, parse_header, request_from_file
from proxy.trial.replay import Recording, ReplayedTurn, read_recording
from proxy.trial.replay import replay as replayed_turns
from proxy.trial.testing import Result, recorded_case, run_test, with_cases
from proxy.turn.pipeline import Pipeline

_QUOTED_WORDS = 60
_NOT_RECORDED = (
    "Not recorded, and so not replayed: the client's system messages and parameters, passages from other "
    "calls, and episodes."
)


def explain(
    config: Config,
    request: Annotated[
        Path,
        typer.Argument(
            metavar="REQUEST",
            help="A file with a request's body as JSON, or {headers, path, body}; - reads stdin.",
        ),
    ],
    *,
    pipeline: Annotated[str, typer.Option(help="The pipeline.")] = "default",
    header: Annotated[
        list[str] | None, typer.Option(metavar="'NAME: VALUE'", help="A header of the request.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show how each filter changes a request, and the request to the model. Nothing is sent."""
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
    """Run the test cases of configurations, which stand under 'tests' of each pipeline."""
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


def replay(  # noqa: PLR0913 - an argument for each option
    session: Annotated[str, typer.Argument(metavar="SESSION", help="The id of a recorded session.")],
    *,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="CONFIG", help="The configuration to compare with; without it, the present one."
        ),
    ] = None,
    present: Annotated[
        Path,
        typer.Option(
            metavar="CONFIG",
            help="The server's configuration, which names the store of recorded calls.",
            default_factory=default_config,
            show_default=False,
        ),
    ],
    pipeline: Annotated[str, typer.Option(help="The pipeline in both configurations.")] = "default",
    turn: Annotated[
        list[int] | None,
        typer.Option(metavar="N", min=1, help="Show only the prompt of this turn; may be repeated."),
    ] = None,
    window: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="The number of messages that the voice platform replays; by default all."
        ),
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Append the prompts to this configuration as test cases."),
    ] = None,
    tenant: Tenant = "",
    as_json: Json = False,
) -> None:
    """Show each prompt of a recorded conversation as another configuration would send it, as a diff.

    Nothing is sent or stored. The client's system messages and parameters, passages from other calls, and
    episodes are not recorded, so they are missing here.
    """

    async def read(memory: Memory, tenant: str) -> Recording:
        return await read_recording(memory, Key(tenant, session))

    recording = run_on_memory(present, tenant, read)
    with reported_errors():
        now = _pipeline(present, pipeline)
        other = _pipeline(config, pipeline) if config else now
        turns = [
            each
            for each in replayed_turns(recording, other, now, window=window)
            if not turn or each.number in turn
        ]
        if turn and not turns:
            raise usage_error(f"There is no prompt {turn[0]} in '{session}'.")
        saved = _save(save, pipeline, session, turns) if save else None
    if as_json:
        write_json(msgspec.json.encode([_row(each) for each in turns]))
    else:
        write_lines(_render(session, turns, whole=config is None), sys.stdout)
        if saved is not None:
            typer.echo(f"{saved} cases appended to {save}; 'turnkeeper test {save}' runs them.")


def _pipeline(config: Path, name: str) -> Pipeline:
    pipelines = build_pipelines(load_configured(config))
    if name not in pipelines:
        raise usage_error(f"{config}: there is no pipeline '{name}'; available: {', '.join(pipelines)}.")
    return pipelines[name]


def _save(file: Path, pipeline: str, session: str, turns: Sequence[ReplayedTurn]) -> int:
    """Appends turns to a configuration as cases that pass with it; returns how many cases are new."""
    settings = load(file, os.environ)
    if pipeline not in settings.pipelines:
        raise ConfigError(f"{file}: there is no pipeline '{pipeline}'")
    names = {test.name for test in settings.pipelines[pipeline].tests}
    through = build_pipelines(settings)[pipeline]
    cases = [recorded_case(session, each, through) for each in turns]
    fresh = [case for case in cases if case["name"] not in names]
    if not fresh:
        return 0
    try:
        text = file.read_text(encoding="utf-8")
        file.write_text(with_cases(text, pipeline, fresh), encoding="utf-8")
    except ConfigError as error:
        raise ConfigError(f"{file}: {error.message}") from None
    except OSError as error:
        raise TurnkeeperError(unwritable(file, error)) from None
    return len(fresh)


def _row(turn: ReplayedTurn) -> dict[str, object]:
    return {
        "number": turn.number,
        "call": turn.call,
        "timestamp": turn.at,
        "user": turn.user,
        "words": turn.words,
        "changed": turn.changed,
        "against": turn.against,
        "before": turn.before,
        "after": turn.after,
    }


def _render(session: str, turns: Sequence[ReplayedTurn], *, whole: bool) -> Iterator[render.StyledLine]:
    """Renders the differences of prompts; with ``whole``, the messages of all prompts instead."""
    yield render.line(_NOT_RECORDED, "dim")
    for turn in turns:
        time = datetime.fromtimestamp(turn.at, UTC)
        words = turn.words if len(turn.words) <= _QUOTED_WORDS else f"{turn.words[:_QUOTED_WORDS]}…"
        heading = f'prompt {turn.number} ({time:%Y-%m-%d %H:%M:%S} UTC): "{words}"'
        if not (whole or turn.changed):
            yield render.line(f"{heading}: unchanged", "dim")
            continue
        yield render.line(heading, "bold")
        if turn.after.error:
            yield render.line(f"  nothing would be sent: {turn.after.error}", "red")
        if whole:
            yield from (
                render.line(f"  {render.message_summary(message, i)}")
                for i, message in enumerate(turn.after.messages)
            )
            continue
        if turn.before.error:
            yield render.line(f"  before, nothing would be sent: {turn.before.error}", "red")
        yield from render.render_diff(turn.before.messages, turn.after.messages)
        if turn.before.parameters != turn.after.parameters:
            yield render.line("~ parameters", "yellow")
        for name in {**turn.before.parameters, **turn.after.parameters}:
            old, new = (each.parameters.get(name, msgspec.UNSET) for each in (turn.before, turn.after))
            if old != new:
                yield from render.render_change(name, old, new)
    if whole:
        yield render.line(f"{session}: {len(turns)} prompts")
    else:
        differing = sum(turn.changed for turn in turns)
        yield render.line(f"{session}: {differing} of {len(turns)} prompts differ")
