"""A stream whose calls of our tools never reach the client."""

from collections.abc import Sequence
from typing import Any

import msgspec

from proxy.answer.framing import data_of, events
from proxy.answer.transcript import words_of
from proxy.tools.chunk import (
    Calls,
    Chunk,
    carries,
    decoded,
    finish_of,
    first_choice,
    name_of,
    object_in,
    summed,
)
from proxy.tools.dialogue import Call, Dialogue

_ENVELOPE = ("id", "object", "created", "model", "system_fingerprint", "service_tier")
_DONE = b"[DONE]"


class Streamed:
    """Rounds of one stream: what is said goes on at once, what is called is held until all of it is known.

    After a round, ``calls`` are ours to carry out before the model goes on, ``aside`` ours that were called
    beside the client's own, ``text`` is what was said in it, ``usage`` what it took so far, and ``done``
    whether it said that it is over. The first round passes as it came where nothing is called; later ones
    bear the name of the first that this stream had.
    """

    def __init__(self, dialogue: Dialogue) -> None:
        self._dialogue = dialogue
        self._envelope: Chunk = {}
        self._introduced = False
        self._carried = False
        self.begin()

    def begin(self) -> None:
        """The next round begins."""
        self.text = ""
        self.done = False
        self.calls: Sequence[Call] = ()
        self.aside: Sequence[Call] = ()
        self.usage: dict[str, Any] = {}
        self.mute = False
        self._finish: Any = "stop"
        self._calling = Calls()
        self._held: list[bytes] = []

    def feed(self, whole: bytes) -> bytes:
        """What the client sees of whole events."""
        self.aside = ()
        return b"".join(map(self._event, events(whole)))

    def close(self) -> bytes:
        """What is left to be shown when the round has ended without saying so."""
        return self._judge() if self._held else b""

    @property
    def _first(self) -> bool:
        return not self._dialogue.rounds

    def _event(self, event: bytes) -> bytes:
        data = data_of(event)
        if data == _DONE:
            self.done = True
            shown = self.close()
            return shown if self.calls else shown + event
        chunk = decoded(data) if data else None
        return event if chunk is None else self._chunk(chunk, event)

    def _chunk(self, chunk: Chunk, event: bytes) -> bytes:
        if chunk.get("error"):
            return self._broken(event)
        self._envelope = self._envelope or {name: chunk[name] for name in _ENVELOPE if name in chunk}
        choice = first_choice(chunk)
        delta = object_in(choice, "delta")
        # Some say in every chunk how much it has been so far: the last one counts.
        self.usage = object_in(chunk, "usage") or self.usage
        self._finish = choice.get("finish_reason") or self._finish
        self.text += words_of(delta)
        self._carried = self._carried or carries(delta)
        if calling := delta.get("tool_calls"):
            self._calling.add(calling)
        if calling or self._held:
            return self._hold(chunk, choice, delta, event)
        if self._first:
            self._introduced = self._introduced or bool(delta.get("role"))
            return event
        return self._renamed(chunk, choice, delta)

    def _hold(self, chunk: Chunk, choice: dict[str, Any], delta: dict[str, Any], event: bytes) -> bytes:
        """A call, and what comes behind it, waits for what becomes of the call; words go on."""
        words = delta.get("content")
        if not isinstance(words, str) or not words:
            self._held.append(event)
            return b""
        silent = {name: value for name, value in delta.items() if name not in {"content", "role"}}
        if any(silent.values()) or choice.get("finish_reason") or self.usage:
            self._held.append(_event_of({**chunk, "choices": [{**choice, "delta": silent}]}))
        said = {**choice, "delta": {"content": words}, "finish_reason": None}
        return self._shown({**_without_usage(chunk), "choices": [said]})

    def _broken(self, event: bytes) -> bytes:
        """An error, behind what the client has called; a call of ours that it leaves is not carried out."""
        ours = any(name_of(call) in self._dialogue.own for call in self._calling.whole())
        held = [] if ours else self._held
        self._held, self._calling = [], Calls()
        return b"".join([*held, event])

    def _judge(self) -> bytes:
        """What is shown of the calls: all as they came, the client's alone, or nothing."""
        calls = self._calling.whole()
        ours = [call for call in calls if name_of(call) in self._dialogue.own]
        theirs = [call for call in calls if name_of(call) not in self._dialogue.own]
        held, self._held = self._held, []
        if not ours and self._first:
            return b"".join(held)
        if ours and not theirs and not self._dialogue.last:
            self.calls = ours
            return b""
        self.aside = () if self._dialogue.last else ours
        self.mute = bool(ours) and not (theirs or self._carried)
        return b"" if self.mute else self._rest(theirs)

    def _rest(self, theirs: Sequence[Call]) -> bytes:
        """The client's calls as one delta, the finish, and what all rounds used."""
        indexed = [{"index": index, **call} for index, call in enumerate(theirs)]
        base = {"index": 0, "logprobs": None}
        called = {**base, "delta": {"tool_calls": indexed}, "finish_reason": None}
        finish: Chunk = {**base, "delta": {}, "finish_reason": finish_of(self._finish, theirs)}
        chunks: list[Chunk] = [{"choices": [called]}] if theirs else []
        chunks.append({"choices": [finish]})
        if used := self._used():
            chunks.append({"choices": [], "usage": used})
        return b"".join(map(self._shown, chunks))

    def _renamed(self, chunk: Chunk, choice: dict[str, Any], delta: dict[str, Any]) -> bytes:
        """A chunk of a later round as one of the first's."""
        if used := object_in(chunk, "usage"):
            chunk = {**chunk, "usage": self._used()}
        if choice:
            delta = {name: value for name, value in delta.items() if name != "role"}
            if not any(delta.values()) and not choice.get("finish_reason") and not used:
                return b""
            chunk = {**chunk, "choices": [{**choice, "delta": delta}]}
        return self._shown(chunk)

    def _used(self) -> dict[str, Any]:
        return summed([*self._dialogue.usages, self.usage])

    def _shown(self, chunk: Chunk) -> bytes:
        if (choice := first_choice(chunk)) and not self._introduced:
            self._introduced = True
            delta = {"role": "assistant", **object_in(choice, "delta")}
            chunk = {**chunk, "choices": [{**choice, "delta": delta}]}
        return _event_of({**chunk, **self._envelope})


def _without_usage(chunk: Chunk) -> Chunk:
    return {name: value for name, value in chunk.items() if name != "usage"}


def _event_of(chunk: Chunk) -> bytes:
    return b"data: " + msgspec.json.encode(chunk) + b"\n\n"
