"""The model that writes summaries: what it is shown, and what is made of its answer."""

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from filters.tokens import in_text
from proxy.background.assignment import MERGE, WRITE, Assignment
from proxy.background.discretion import Discretion
from proxy.background.inquiry import Inquiry
from proxy.background.refusal import refuses
from proxy.background.verdict import CutShort, Overlong
from proxy.errors import UpstreamError
from proxy.memory.faults import Unmade, Unnamed, Unusable, Useless
from proxy.memory.session.entry import Entry
from proxy.memory.summaries.author import WrittenNotes

_MOST_TOKENS: Final = 1000
_FRAME: Final = 400
"""About how many tokens the task itself takes."""


class Summariser:
    """Asks one model, and another one where it fails. ``input_tokens`` is what it is shown at once."""

    def __init__(
        self,
        inquiry: Inquiry,
        *,
        model: str,
        fallback: str,
        input_tokens: int,
        discretion: Discretion | None = None,
    ) -> None:
        self._inquiry = inquiry
        self._discretion = discretion or Discretion()
        self._model = model
        self._fallback = fallback
        self._room = max(input_tokens - _FRAME, 100)

    async def notes(
        self, said: Sequence[Entry], earlier: Sequence[str], *, last: str | None, fallback: str = ""
    ) -> WrittenNotes:
        """Notes on what was said; ``last`` is the model that is asked where the settings name none."""
        background = _fitting(list(map(self._discretion.text, earlier)), self._room // 4)
        written: list[str] = []
        model = ""
        for piece in _pieces(map(self._line, said), self._room * 3 // 4):
            task = Assignment("transcript", piece, WRITE, background)
            text, model = await self._ask(task, last, fallback)
            written.append(text)
        if len(written) > 1 and sum(map(in_text, written)) > _MOST_TOKENS:
            return await self.merged(written, last=last)
        return WrittenNotes("\n".join(written), model)

    async def merged(self, notes: Sequence[str], *, last: str | None) -> WrittenNotes:
        """One text in the place of several."""
        written: list[str] = []
        model = ""
        for piece in _pieces(map(_quoted, map(self._discretion.text, notes)), self._room):
            text, model = await self._ask(Assignment("notes", piece, MERGE), last, "")
            written.append(text)
        return WrittenNotes("\n".join(written), model)

    def _line(self, entry: Entry) -> str:
        told: dict[str, object] = {"role": entry.role, "text": self._discretion.text(entry.text, entry.role)}
        if entry.put_in:
            told["source"] = entry.source
        elif entry.user and entry.role == "user":
            told["speaker"] = entry.user
        if entry.tool_calls:
            told["calls"] = [call.get("function") for call in self._discretion.calls(entry.tool_calls)]
        if entry.interrupted:
            told["interrupted"] = True
        return _quoted(told)

    async def _ask(self, task: Assignment, last: str | None, fallback: str) -> tuple[str, str]:
        models = dict.fromkeys(name for name in (self._model or last, fallback or self._fallback) if name)
        failures: list[Exception] = []
        for model in models:
            try:
                return await self._written(task, model), model
            except (UpstreamError, Unusable) as error:
                failures.append(error)
        if not failures:
            raise Unnamed("No model is named for summaries.")
        kind = Useless if any(isinstance(failure, Unusable) for failure in failures) else Unmade
        raise kind(" ".join(dict.fromkeys(map(str, failures)))) from failures[-1]

    async def _written(self, task: Assignment, model: str) -> str:
        """The notes: briefer ones where they came to no end, and those of each half of what is too long."""
        try:
            return _checked(await self._inquiry.ask(task.prompt(), model=model), task.size)
        except CutShort:
            brief = await self._inquiry.ask(task.briefer().prompt(), model=model)
            return _checked(brief, task.size)
        except Overlong:
            if not (halves := task.halves()):
                raise
            return "\n".join([await self._written(half, model) for half in halves])


def _checked(text: str, most: int) -> str:
    """The notes; Useless for a refusal, and for more than notes may be or stand for."""
    if refuses(text):
        raise Useless("The model declined to write notes.")
    if in_text(text) > min(max(most, 40), _MOST_TOKENS):
        raise Useless("The model's notes are longer than what they stand for.")
    return text


def _quoted(data: object) -> str:
    """Data as one line of JSON, in which nothing can close a mark."""
    return msgspec.json.encode(data).decode().replace("<", "\\u003c").replace(">", "\\u003e")


def _pieces(lines: Iterable[str], room: int) -> list[str]:
    """The lines in as few pieces as have room; a line that has none is cut."""
    pieces: list[list[str]] = [[]]
    left = room
    for part in (part for line in lines for part in _cut(line, room)):
        size = in_text(part) + 1
        if size > left and pieces[-1]:
            pieces.append([])
            left = room
        pieces[-1].append(part)
        left -= size
    return ["\n".join(piece) for piece in pieces if piece]


def _cut(line: str, room: int) -> list[str]:
    if in_text(line) < room:
        return [line]
    return [*_cut(line[: len(line) // 2], room), *_cut(line[len(line) // 2 :], room)]


def _fitting(earlier: Sequence[str], room: int) -> str:
    """As many of the newest earlier notes as have room."""
    kept: list[str] = []
    for text in reversed(earlier):
        room -= in_text(text)
        if room < 0:
            break
        kept.insert(0, _quoted(text))
    return "\n".join(kept)
