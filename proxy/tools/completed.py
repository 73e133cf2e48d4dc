"""A whole answer whose calls of our tools never reach the client."""

from collections.abc import Sequence
from typing import Any

import msgspec

from proxy.answer.transcript import words_of
from proxy.tools.chunk import (
    Chunk,
    carries,
    decoded,
    finish_of,
    first_choice,
    name_of,
    object_in,
    summed,
    tidied,
)
from proxy.tools.dialogue import Call, Dialogue


class Completed:
    """Rounds of one whole answer: shown is the last, with the words of all and the tokens of all."""

    def __init__(self, dialogue: Dialogue) -> None:
        self._dialogue = dialogue
        self._first: Chunk = {}
        self.begin()

    def begin(self) -> None:
        """The next round begins."""
        self.text = ""
        self.calls: Sequence[Call] = ()
        self.aside: Sequence[Call] = ()
        self.usage: dict[str, Any] = {}
        self.mute = False

    def feed(self, body: bytes) -> bytes:
        """What the client sees of a round's body: nothing where the model has to be asked again."""
        answer = decoded(body)
        choice = first_choice(answer or {})
        if answer is None or not choice:
            return body  # an error under the status 200 is no round
        self._note(answer, object_in(choice, "message"))
        given = object_in(choice, "message").get("tool_calls")
        calls = [call for call in given if isinstance(call, dict)] if isinstance(given, list) else []
        ours = [tidied(call) for call in calls if name_of(call) in self._dialogue.own]
        theirs = [call for call in calls if name_of(call) not in self._dialogue.own]
        if not ours and not self._dialogue.rounds:
            return body
        if ours and not theirs and not self._dialogue.last:
            self.calls = ours
            return b""
        self.aside = () if self._dialogue.last else ours
        said = self._dialogue.text or carries(object_in(choice, "message"))
        self.mute = bool(ours) and not (theirs or said)
        return self._joined(answer, choice, theirs)

    def _note(self, answer: Chunk, message: dict[str, Any]) -> None:
        self._first = self._first or answer
        self.text = words_of(message)
        self.usage = object_in(answer, "usage")

    def _joined(self, answer: Chunk, choice: dict[str, Any], theirs: Sequence[Call]) -> bytes:
        message = object_in(choice, "message")
        said = {name: value for name, value in message.items() if name != "tool_calls"}
        said["content"] = _behind(self._dialogue.text, message.get("content"))
        if theirs:
            said["tool_calls"] = [*theirs]
        finish = finish_of(choice.get("finish_reason"), theirs)
        named: Chunk = {name: self._first[name] for name in ("id", "created", "model") if name in self._first}
        whole: Chunk = {**answer, **named, "choices": [{**choice, "message": said, "finish_reason": finish}]}
        if used := [each for each in (*self._dialogue.usages, self.usage) if each]:
            whole["usage"] = summed(used)
        return msgspec.json.encode(whole)


def _behind(before: str, content: Any) -> Any:
    """What was said in the last round, behind the words of those before it."""
    if isinstance(content, list):
        return [{"type": "text", "text": before}, *content] if before else content
    return before + (content if isinstance(content, str) else "") or None
