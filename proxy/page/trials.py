"""Drafts of pipelines that a user of the page writes, and trials of them.

A trial runs a draft on a request, a recorded call or a kept turn, in a process that can be killed.
"""

import time
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Final, Protocol, Self

import msgspec

from filters.base import Fields, Filter, Messages
from proxy.answer.stream_filters import FilteredAnswer
from proxy.describe.pages import step_text
from proxy.errors import FilterFailed, RequestError, TurnkeeperError, filter_name
from proxy.page.difference import DiffGroup, StepDiff, grouped_rows, step_diff
from proxy.page.renderer import Renderer
from proxy.settings.build_pipelines import with_filters
from proxy.settings.diagnostics import Diagnostic
from proxy.settings.filter_registry import OWN_FILES, FilterRegistry, PluginError, load_file
from proxy.settings.load import Steps, load_steps
from proxy.trial import explain
from proxy.trial.explain import Explanation, explain_request, run_filters
from proxy.trial.replay import Recording, ReplayedTurn, SentPrompt, replay
from proxy.turn.context import filter_context
from proxy.turn.pipeline import Pipeline
from proxy.turn.state import TurnContent
from proxy.upstream.practice import PracticeModel
from proxy.upstream.providers import PROVIDERS
from proxy.upstream.routing import TimeLimits
from proxy.upstream.target import Health, Target

_LARGEST_REQUEST: Final = 256_000
_LARGEST_RESULT: Final = 5_000_000
_MODEL: Final = "a-model"
_PROMPTS: Final = 50
_SHIPPED: Final = "filters."
_LONGEST_MODEL: Final = 300


class Choices(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a form: a pipeline, a model that replaces its own, and its steps as YAML."""

    pipeline: str
    model: str
    yaml: str

    @classmethod
    def of(
        cls, fields: Mapping[str, str], pipelines: Mapping[str, Pipeline], pipeline: str = "default"
    ) -> Self:
        """Reads the choices of a form; ``pipeline`` and the chosen pipeline's steps are the defaults."""
        chosen = pipelines.get(fields.get("pipeline", pipeline)) or pipelines["default"]
        yaml = fields.get("yaml", "")
        if fields.get("load") or not yaml.strip():
            yaml = as_yaml(chosen)
        return cls(pipeline=chosen.name, model=fields.get("model", "").strip()[:_LONGEST_MODEL], yaml=yaml)


class Draft(msgspec.Struct, frozen=True, kw_only=True):
    """Steps as YAML, with the parts that a trial needs of the pipeline whose steps they replace.

    ``own_filters`` maps the modules of filters that are not shipped to their files. ``pipeline`` has no
    filters and no targets. ``remembers`` is whether the pipeline has memory, which a trial cannot read.
    """

    yaml: str
    tenant: str
    own_filters: Mapping[str, str]
    pipeline: Pipeline
    remembers: bool
    upstream: str
    provider: str
    upstream_model: str | None
    allow: frozenset[str]

    @classmethod
    def of(cls, choices: Choices, pipelines: Mapping[str, Pipeline], tenant: str) -> Self:
        """Makes a draft of the choices in a tenant's form."""
        pipeline = pipelines[choices.pipeline]
        target, memory = pipeline.targets[0], pipeline.memory
        return cls(
            yaml=choices.yaml,
            tenant=tenant,
            own_filters=own_filters(pipelines),
            pipeline=Pipeline(
                name=pipeline.name,
                targets=(),
                filters=(),
                skip_failing_filters=pipeline.skip_failing_filters,
                id_places=pipeline.id_places,
                max_messages=pipeline.max_messages,
                model=choices.model or pipeline.model,
                limits=TimeLimits(first_token=0.0, total=0.0),
                shown_tools=pipeline.tools if memory and memory.facts and memory.search else (),
            ),
            remembers=memory is not None,
            upstream=target.name,
            provider=target.provider.name,
            upstream_model=target.model,
            allow=target.allow,
        )

    def with_steps(self, steps: Steps) -> Pipeline:
        """Returns the draft's pipeline with these steps, and a target that connects to no upstream."""
        target = Target(
            name=self.upstream,
            health=Health(),
            upstream=PracticeModel(),
            provider=PROVIDERS[self.provider],
            headers=(),
            model=self.upstream_model,
            allow=self.allow,
            first_token=0.0,
            total=0.0,
        )
        pipeline = msgspec.structs.replace(self.pipeline, targets=(target,))
        return with_filters(pipeline, steps.request, steps.answer)


def as_yaml(pipeline: Pipeline) -> str:
    """The steps of a pipeline as YAML, each on one line if it fits."""
    sides: list[str] = []
    for side, steps in (("request", pipeline.filters), ("answer", pipeline.answer_filters)):
        lines = [f"{side}:\n"] if steps else []
        for step in steps:
            text = step_text(filter_name(step), step.model_dump(mode="json", exclude_unset=True))
            lines += [f"  {line}\n" for line in text.splitlines()]
        sides += ["".join(lines)] if lines else []
    return "\n".join(sides) or "request: []"


def own_filters(pipelines: Mapping[str, Pipeline]) -> dict[str, str]:
    """Maps the modules of the pipelines' filters that are not shipped to their files."""
    steps = [step for each in pipelines.values() for step in (*each.filters, *each.answer_filters)]
    modules = {type(step).__module__ for step in steps if isinstance(step, Filter)}
    return {
        name: str(getattr(import_module(name), "__file__", None) or "")
        for name in sorted(modules)
        if not name.startswith(_SHIPPED)
    }


def loaded_filters(sources: Mapping[str, str]) -> FilterRegistry:
    """Loads a user's own filters beside the shipped ones. Raises PluginError where one cannot be loaded."""
    modules: dict[str, ModuleType] = {}
    for name, file in sources.items():
        # A single file is loaded by its path; a module of a package is imported, as it may import others.
        module = load_file(Path(file)) if name.startswith(OWN_FILES) else import_module(name)
        modules[name.rpartition(".")[2]] = module
    return FilterRegistry(files=modules, installed=False)


class Trial(Protocol):
    """A trial of a draft, which is sent to a process."""

    def run(self, renderer: Renderer) -> bytes:
        """Returns the result. Raises MemoryError for want of memory, also in a filter."""
        ...


class DraftErrors(msgspec.Struct, frozen=True):
    """The errors of a draft: ``step_errors`` are those in its steps, ``error`` is any other."""

    step_errors: Sequence[Diagnostic] = ()
    error: str | None = None


def _pipeline(draft: Draft) -> tuple[Pipeline | DraftErrors, Sequence[Diagnostic]]:
    """Returns the pipeline of a draft, or its errors, and the warnings about its steps."""
    try:
        checked = load_steps(draft.yaml, loaded_filters(draft.own_filters))
    except PluginError as error:
        return DraftErrors(error=f"A filter of this server's own cannot be run: {error}."), ()
    if checked.settings is None:
        return DraftErrors(step_errors=checked.errors), ()
    return draft.with_steps(checked.settings), checked.warnings


def _message(error: TurnkeeperError) -> str:
    if isinstance(error, FilterFailed) and error.cause is MemoryError:
        raise MemoryError from None
    return error.message


def _html(renderer: Renderer, template: str, **values: Any) -> bytes:
    """Renders a result; one of more than 5 MB is replaced by an error."""
    html = renderer.text(template, **values).encode("utf-8", "replace")
    if len(html) <= _LARGEST_RESULT:
        return html
    message = f"The result has more than {_LARGEST_RESULT // 1_000_000} MB, which is too long to be shown."
    return renderer.text("errors.html", error=message).encode()


# --- a request


class RequestTrial(msgspec.Struct, frozen=True, kw_only=True):
    """A trial of a request as a client would send it; its result is the effect of each step, as HTML."""

    draft: Draft
    request: str

    def run(self, renderer: Renderer) -> bytes:
        """Renders the part of the page that shows the steps and the body upstream."""
        pipeline, doubts = _pipeline(self.draft)
        if isinstance(pipeline, DraftErrors):
            return _html(renderer, "errors.html", step_errors=pipeline.step_errors, error=pipeline.error)
        explanation: Explanation | None = None
        steps, sent, message = list[StepDiff](), "", None
        try:
            explanation = self._explain(pipeline)
        except TurnkeeperError as error:
            message = _message(error)
        else:
            steps = [step_diff(number, step) for number, step in enumerate(explanation.steps, 1)]
            if explanation.error:
                message = explanation.error["message"]
            if explanation.sent is not None:
                sent = msgspec.json.format(msgspec.json.encode(explanation.sent), indent=2).decode()
        return _html(
            renderer,
            "tried.html",
            explanation=explanation,
            changes=steps,
            sent=sent,
            error=message,
            doubts=doubts,
        )

    def _explain(self, pipeline: Pipeline) -> Explanation:
        draft, data = self.draft, self.request.encode("utf-8", "replace")
        if not data.strip():
            raise RequestError("Paste a request, or choose a voice platform's.")
        if len(data) > _LARGEST_REQUEST:
            raise RequestError(f"A request here has at most {_LARGEST_REQUEST // 1000} KB.")
        request = explain.request_from_file(data, {}, draft.tenant)
        try:
            return explain_request(request, pipeline, time.time(), remembers=draft.remembers)
        except RequestError as error:
            if error.param != "model":
                raise
            # Not every platform names a model, and a trial asks none.
            named = msgspec.structs.replace(pipeline, model=_MODEL)
            return explain_request(request, named, time.time(), remembers=draft.remembers)


# --- a recorded call


class ReplayedPrompt(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt with its differences; a parameter is a name, the old value and the new one."""

    turn: ReplayedTurn
    groups: Sequence[DiffGroup]
    parameters: Sequence[tuple[str, Any, Any]]

    @classmethod
    def of(cls, turn: ReplayedTurn) -> "ReplayedPrompt":
        """Compares the prompts of a turn, before and after."""
        one, other = turn.before.parameters, turn.after.parameters
        return cls(
            turn=turn,
            groups=grouped_rows(turn.before.messages, turn.after.messages) if turn.changed else (),
            parameters=[
                (name, one.get(name), other.get(name))
                for name in {**one, **other}
                if one.get(name) != other.get(name)
            ],
        )


class CallTrial(msgspec.Struct, frozen=True, kw_only=True):
    """A trial of a recorded call; its result compares the newest fifty prompts, the newest first, as HTML.

    A prompt is compared with the one that was ``sent``, or else with the one of ``present``.
    """

    draft: Draft
    present: Draft
    recording: Recording
    sent: Sequence[SentPrompt]

    def run(self, renderer: Renderer) -> bytes:
        """Renders the part of the page that shows the prompts and their differences."""
        pipeline, doubts = _pipeline(self.draft)
        present, _ = _pipeline(self.present)
        for each in (pipeline, present):
            if isinstance(each, DraftErrors):
                return _html(renderer, "errors.html", step_errors=each.step_errors, error=each.error)
        assert isinstance(pipeline, Pipeline) and isinstance(present, Pipeline)  # noqa: S101, PT018 - as above
        try:
            turns = list(replay(self.recording, pipeline, present, sent=self.sent))
        except TurnkeeperError as error:
            return _html(renderer, "errors.html", error=_message(error), doubts=doubts)
        return _html(
            renderer,
            "replayed.html",
            prompts=[ReplayedPrompt.of(turn) for turn in turns[: -_PROMPTS - 1 : -1]],
            total=len(turns),
            changed=sum(turn.changed for turn in turns),
            doubts=doubts,
        )


# --- a kept turn


class FilteredCall(msgspec.Struct, frozen=True, kw_only=True):
    """A request after the request filters, and whether there are filters for its answer.

    ``error`` and ``step_errors`` say why there is no such request.
    """

    messages: Messages = ()
    fields: Fields = {}
    has_answer_filters: bool = False
    step_errors: Sequence[Diagnostic] = ()
    error: str | None = None


class FilteredData(msgspec.Struct, frozen=True, kw_only=True):
    """An answer after the answer filters; ``error`` is why it is incomplete."""

    data: bytes = b""
    error: str | None = None


class TurnTrial(msgspec.Struct, frozen=True, kw_only=True):
    """A trial of a kept turn's request, with the memory that the turn had."""

    draft: Draft
    content: TurnContent

    def run(self, renderer: Renderer) -> bytes:  # noqa: ARG002 - the result is not rendered here
        """Returns a FilteredCall as JSON."""
        pipeline, _ = _pipeline(self.draft)
        if isinstance(pipeline, DraftErrors):
            return _result(FilteredCall(error=pipeline.error, step_errors=pipeline.step_errors))
        content = self.content
        try:
            run = run_filters(content.marked_request, content.identity, pipeline, content.now, content.memory)
        except TurnkeeperError as error:
            return _result(FilteredCall(error=_message(error)))
        answered = bool(pipeline.answer_filters)
        return _result(FilteredCall(messages=run.messages, fields=run.fields, has_answer_filters=answered))


class AnswerTrial(msgspec.Struct, frozen=True, kw_only=True):
    """A trial of a model's answer to a kept turn; ``data`` is a whole stream or a body."""

    draft: Draft
    content: TurnContent
    data: bytes

    def run(self, renderer: Renderer) -> bytes:  # noqa: ARG002 - the result is not rendered here
        """Returns FilteredData as JSON."""
        pipeline, _ = _pipeline(self.draft)
        if isinstance(pipeline, DraftErrors):
            return _result(FilteredData(error=pipeline.error))
        content = self.content
        context = filter_context(content.identity, content.memory, pipeline, now=content.now)
        answer, data = FilteredAnswer(pipeline.answer_filters, context), b""
        try:
            if not content.is_streaming:
                return _result(FilteredData(data=answer.filter_body(self.data)))
            data = answer.opening() + answer.feed(self.data)
            if answer.error:
                raise answer.error
            data += answer.close()
        except TurnkeeperError as error:
            return _result(FilteredData(data=data, error=_message(error)))
        return _result(FilteredData(data=data))


def _result(result: FilteredCall | FilteredData) -> bytes:
    data = msgspec.json.encode(result)
    if len(data) <= _LARGEST_RESULT:
        return data
    message = f"The result has more than {_LARGEST_RESULT // 1_000_000} MB, which is too long to be tried."
    return msgspec.json.encode(type(result)(error=message))
