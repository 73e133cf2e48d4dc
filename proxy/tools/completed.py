"""A whole answer whose calls of our tools never reach the client."""

from collections.abc import Sequence
from typing import Any

import msgspec

from proxy.tools.talk import Chunk, decoded, first_choice, object_in, summed


class Completed:
    """Rounds of one whole answer: shown is the last, with the words of all and the tokens of all."""

    def __init__(self, own: frozenset[str]) -> None:
        self._own = own
        self._first: Chunk = {}
        self._words: list[str] = []
        self._usages: list[dict[str, Any]] = []
        self._last = False
        self._reset()

    def begin_again(self, *, last: bool) -> None:
        """The next round begins; in the ``last`` one a call of ours is nothing but dropped."""
        self._last = last
        self._reset()

    def _reset(self) -> None:
        self.text = ""
        self.calls: Sequence[dict[str, Any]] = ()
        self.aside: Sequence[dict[str, Any]] = ()

    def feed(self, body: bytes) -> bytes:
        """What the client sees of a round's body: nothing where the model has to be asked again."""
        answer = decoded(body)
        if answer is None:
            return body
        message = object_in(first_choice(answer), "message")
        calls = [call for call in message.get("tool_calls") or () if isinstance(call, dict)]
        ours = [call for call in calls if object_in(call, "function").get("name") in self._own]
        self._note(answer, message)
        if not ours and len(self._usages) <= 1 and not self._words[:-1]:
            return body
        if ours and len(ours) == len(calls) and not self._last:
            self.calls = ours
            return b""
        self.aside = () if self._last else ours
        return self._joined(answer, message, [call for call in calls if call not in ours])

    def _note(self, answer: Chunk, message: dict[str, Any]) -> None:
        self._first = self._first or answer
        words = message.get("content")
        self.text = words if isinstance(words, str) else ""
        self._words.append(self.text)
        if usage := object_in(answer, "usage"):
            self._usages.append(usage)

    def _joined(self, answer: Chunk, message: dict[str, Any], theirs: Sequence[dict[str, Any]]) -> bytes:
        said = {name: value for name, value in message.items() if name != "tool_calls"}
        said["content"] = "".join(self._words) or None
        if theirs:
            said["tool_calls"] = [*theirs]
        choice = first_choice(answer)
        reason = choice.get("finish_reason")
        finish = "tool_calls" if theirs else "stop" if reason == "tool_calls" else reason
        named: Chunk = {name: self._first[name] for name in ("id", "created", "model") if name in self._first}
        whole: Chunk = {**answer, **named, "choices": [{**choice, "message": said, "finish_reason": finish}]}
        if self._usages:
            whole["usage"] = summed(self._usages)
        return msgspec.json.encode(whole)
