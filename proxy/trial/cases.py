"""Prompts of recorded calls as cases for ``turnkeeper test``."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import yaml

from proxy.errors import ConfigError
from proxy.settings.document import MAX_BYTES
from proxy.settings.pipeline_tests import PipelineTest
from proxy.trial.explain import message_dict
from proxy.trial.replay import ReplayedTurn
from proxy.trial.testing import sent_body
from proxy.turn.pipeline import Pipeline

Case = Mapping[str, Any]
_WIDTH: Final = 110
_RARE_BREAKS: Final = frozenset("\x85\u2028\u2029")


class _Dumper(yaml.SafeDumper):
    """Writes texts with rare line breaks as escapes: between single quotes they are read as spaces."""

    def represent_str(self, data: str) -> yaml.ScalarNode:
        """A text, between double quotes where it has such a line break."""
        style = '"' if _RARE_BREAKS.intersection(data) else None
        return self.represent_scalar("tag:yaml.org,2002:str", data, style)


_Dumper.add_representer(str, _Dumper.represent_str)


def recorded_case(session: str, turn: ReplayedTurn, pipeline: Pipeline) -> Case:
    """A prompt of a session as a case that expects what ``pipeline`` sends; without memory, as all cases.

    Raises TurnkeeperError where nothing is sent.
    """
    case: dict[str, Any] = {
        "name": f"{session}, prompt {turn.number}",
        "headers": {"X-Session-Id": session, **({"X-User-Id": turn.user} if turn.user else {})},
        "time": datetime.fromtimestamp(turn.at, UTC).isoformat(timespec="seconds"),
        "messages": [_written(message_dict(message)) for message in turn.window],
    }
    sent, _ = sent_body(PipelineTest.model_validate(case), pipeline)
    return {**case, "expect": [_written(message) for message in sent["messages"]]}


def with_cases(text: str, pipeline: str, cases: Sequence[Case]) -> str:
    """A configuration's text with cases behind those of a pipeline; all else stays as it is written.

    Raises ConfigError where that cannot be written.
    """
    node = yaml.compose(text, Loader=yaml.CSafeLoader)
    of_pipeline = _child(_child(node, "pipelines"), pipeline)
    tests = _child(of_pipeline, "tests")
    listing = yaml.dump(
        [_literal(case) for case in cases], Dumper=_Dumper, allow_unicode=True, sort_keys=False, width=_WIDTH
    )
    where: yaml.Node
    if isinstance(tests, yaml.SequenceNode) and not tests.flow_style:
        where, column, lines = tests, tests.start_mark.column, listing
    elif isinstance(of_pipeline, yaml.MappingNode) and not of_pipeline.flow_style and tests is None:
        where, column = of_pipeline, of_pipeline.start_mark.column
        lines = "tests:\n" + _indented(listing, 2)
    else:
        raise ConfigError(f"pipelines.{pipeline}: write the pipeline over several lines, and 'tests:' too")
    before, after = _split(text, where.end_mark.index)
    extended = f"{before}\n{_indented(lines, column)}{after}"
    if len(extended.encode()) > MAX_BYTES:
        raise ConfigError(
            f"with these cases it would have more than {MAX_BYTES // 1024} KiB; choose prompts with --turn"
        )
    return extended


def _split(text: str, index: int) -> tuple[str, str]:
    """The text up to the last line of a node that ends before ``index``, and all behind that."""
    before = text[:index].rstrip()
    return before, text[len(before) :].removeprefix("\n")


def _child(node: yaml.Node | None, name: str) -> yaml.Node | None:
    if not isinstance(node, yaml.MappingNode):
        return None
    return next((value for key, value in node.value if key.value == name), None)


def _indented(text: str, columns: int) -> str:
    return "".join(" " * columns + line if line.strip() else line for line in text.splitlines(keepends=True))


def _written(message: Mapping[str, Any]) -> Any:
    """A message in a case's short form, where it has a role and words alone."""
    content = message.get("content")
    if message.keys() == {"role", "content"} and isinstance(content, str) and message["role"].isalpha():
        return f"{message['role']}: {content}"
    return dict(message)


def _literal(value: Any) -> Any:
    """A value whose texts are read as they are: ``$`` would begin the name of a variable."""
    if isinstance(value, Mapping):
        return {key: _literal(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_literal(inner) for inner in value]
    return value.replace("$", "$$") if isinstance(value, str) else value
