import re
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from filters.base import AnswerFilter, Context, Delta, Spoken, Stage
from filters.text.rewriter import Arriving, Rewriter, TextStage

_FIELDS = (
    "reasoning",
    "reasoning_content",
    "reasoning_details",
    "reasoning_items",
    "reasoning_text",
    "thinking",
    "thinking_blocks",
)
_PARTS = frozenset({"reasoning", "thinking", "redacted_thinking"})
_BLANKS = re.compile(r"\s{0,40}")


class HideReasoning(AnswerFilter):
    """Keep a model's reasoning from being spoken, in separate fields or between tags.

    If a tag is never closed, all text after it counts as reasoning, and the answer may be empty. Clients that
    must send reasoning back to the model, as some models require for tool calls, need another pipeline.
    """

    tags: tuple[Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_:-]{0,31}$")], ...] = (
        "think",
        "thinking",
        "reasoning",
    )
    """Names of tags around reasoning. Tags are removed with it, and with the blanks after it. Empty: none."""

    where: Literal["beginning", "anywhere"] = "beginning"
    """Whether tags count only before the first word, or anywhere in the answer, even in code."""

    opened: bool = False
    """Whether answers begin within reasoning, because the model's chat template contains the opening tag.

    An answer without a closing tag is then hidden completely.
    """

    fields: tuple[Annotated[str, Field(min_length=1)], ...] = _FIELDS
    """Fields of a delta or a message that are removed."""

    spoken: ClassVar[tuple[Spoken, ...]] = (
        Spoken(
            "Reasoning before the answer, split anywhere",
            {},
            before=["<thi", "nk>\nThey ask for the ti", "me.\n</thin", "k>\n\n", "It is noon."],
            after="It is noon.",
        ),
        Spoken(
            "Within an answer a tag is text",
            {},
            before=["Write <think>", " before it."],
            after="Write <think> before it.",
        ),
        Spoken(
            "Reasoning between words",
            {"where": "anywhere", "tags": ["plan"]},
            before=["Well, <plan>be", " brief</plan> it is noon."],
            after="Well, it is noon.",
        ),
        Spoken(
            "The template has opened the tag already",
            {"opened": True, "tags": ["think"]},
            before=["They ask for the time.</th", "ink>It is noon."],
            after="It is noon.",
        ),
    )

    def open(self, context: Context) -> Stage:
        """Returns a stage for one choice."""
        steps = [Reasoning(self.tags, anywhere=self.where == "anywhere", opened=self.opened)]
        return _Stage(self.fields, TextStage(*(steps if self.tags else ())))


class _Stage:
    def __init__(self, fields: Sequence[str], words: TextStage) -> None:
        self._fields = frozenset(fields)
        self._words = words

    def feed(self, delta: Delta) -> Delta:
        if not self._fields.isdisjoint(delta):
            delta = {name: value for name, value in delta.items() if name not in self._fields}
        content = delta.get("content")
        if isinstance(content, list) and any(map(_is_thought, content)):
            delta = {**delta, "content": [part for part in content if not _is_thought(part)]}
        return self._words.feed(delta)

    def close(self) -> Delta:
        return self._words.close()


def _is_thought(part: Any) -> bool:
    kind = part.get("type") if isinstance(part, dict) else None
    return isinstance(kind, str) and kind in _PARTS


class Reasoning(Rewriter):
    """Removes the text between tags, and the blanks after it.

    Without ``anywhere``, this is only done before the first word of the answer. With ``opened``, the answer
    begins within the tags; without a closing tag, all of it is removed.
    """

    def __init__(self, tags: Sequence[str], *, anywhere: bool, opened: bool) -> None:
        super().__init__()
        self._tags = tuple(tag.lower() for tag in tags)
        self._anywhere = anywhere
        self._inside: tuple[str, ...] = self._tags if opened else ()
        self._begun = False
        self._trimming = False

    def _is_plain(self, text: str) -> bool:
        if self._inside or self._trimming:
            return False
        return "<" not in text if self._anywhere else self._begun

    def _step(self, arriving: Arriving, i: int) -> tuple[int, str]:
        if self._inside:
            return self._hidden(arriving, i)
        if self._trimming:
            self._trimming = arriving.at(i).isspace()
            return i + self._trimming, ""
        if self._anywhere:
            start = arriving.text.find("<", i)
            if start != i:
                start = len(arriving.text) if start < 0 else start
                return start, arriving.text[i:start]
            end = self._enter(arriving, i)
            return (end, "") if end else (i + 1, "<")
        if self._begun:
            return len(arriving.text), arriving.text[i:]
        end = self._enter(arriving, arriving.past(_BLANKS, i))
        self._begun = end is None
        return end or i, ""

    def _hidden(self, arriving: Arriving, i: int) -> tuple[int, str]:
        start = arriving.text.find("<", i)
        if start != i:
            return len(arriving.text) if start < 0 else start, ""
        ends = (_end_of_tag(arriving, i, "/" + tag) for tag in self._inside)
        end = next(filter(None, ends), None)
        if end:
            self._inside, self._trimming = (), True
        return end or i + 1, ""

    def _enter(self, arriving: Arriving, i: int) -> int | None:
        for tag in self._tags:
            end = _end_of_tag(arriving, i, tag)
            if end:
                self._inside = (tag,)
                return end
        return None


def _end_of_tag(arriving: Arriving, i: int, name: str) -> int | None:
    """Returns the end of the tag ``<name>`` at ``i``, or ``None``.

    Ignores case, and blanks before the ``>``. Raises Undecided.
    """
    if not arriving.begins(i, f"<{name}"):
        return None
    end = arriving.past(_BLANKS, i + 1 + len(name))
    return end + 1 if arriving.at(end) == ">" else None
