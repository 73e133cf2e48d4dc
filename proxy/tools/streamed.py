"""A stream whose calls of our tools never reach the client."""

from collections.abc import Sequence
from typing import Any

import msgspec

from proxy.framing import data_of, events
from proxy.tools.talk import Calls, Chunk, decoded, first_choice, object_in, summed

_ENVELOPE = ("id", "object", "created", "model", "system_fingerprint", "service_tier")
_DONE = b"[DONE]"


class Streamed:
    """Rounds of one stream: what is said goes on at once, what is called is held until all of it is known.

    After a round, ``calls`` are ours to carry out before the model goes on, ``aside`` ours that were called
    beside the client's own, ``text`` is what was said in it, and ``done`` whether it said that it is over.
    The first round passes as it came where nothing is called; later ones bear the first one's name.
    """

    def __init__(self, own: frozenset[str]) -> None:
        self._own = own
        self._envelope: Chunk = {}
        self._usages: list[dict[str, Any]] = []
        self._first, self._last = True, False
        self._reset()

    def begin_again(self, *, last: bool) -> None:
        """The next round begins; in the ``last`` one a call of ours is nothing but dropped."""
        self._first, self._last = False, last
        self._reset()

    def _reset(self) -> None:
        self.text = ""
        self.done = False
        self.calls: Sequence[dict[str, Any]] = ()
        self.aside: Sequence[dict[str, Any]] = ()
        self._calling = Calls()
        self._held: list[bytes] = []

    def feed(self, whole: bytes) -> bytes:
        """What the client sees of whole events."""
        return b"".join(map(self._event, events(whole)))

    def close(self) -> bytes:
        """What is left to be shown when the round has ended without saying so."""
        return self._judge() if self._held else b""

    def _event(self, event: bytes) -> bytes:
        data = data_of(event)
        if data == _DONE:
            self.done = True
            shown = self.close()
            return shown if self.calls else shown + event
        chunk = decoded(data) if data else None
        return event if chunk is None else self._chunk(chunk, event)

    def _chunk(self, chunk: Chunk, event: bytes) -> bytes:
        self._envelope = self._envelope or {name: chunk[name] for name in _ENVELOPE if name in chunk}
        choice = first_choice(chunk)
        delta = object_in(choice, "delta")
        usage = object_in(chunk, "usage")
        calling = bool(delta.get("tool_calls"))
        if usage and (calling or self._held):
            self._usages.append(usage)
        if calling:
            return self._call(chunk, event)
        if isinstance(words := delta.get("content"), str):
            self.text += words
        if self._held:
            return self._hold(chunk, event, said=bool(words) and not choice.get("finish_reason"))
        return event if self._first else self._renamed(chunk, choice, delta, usage)

    def _call(self, chunk: Chunk, event: bytes) -> bytes:
        """Holds a call back; words in the same delta go on."""
        choice = first_choice(chunk)
        delta = object_in(choice, "delta")
        self._calling.add(delta["tool_calls"])
        words = delta.get("content")
        if not isinstance(words, str) or not words:
            self._held.append(event)
            return b""
        self.text += words
        self._held.append(_event_of({**chunk, "choices": [{**choice, "delta": {**delta, "content": None}}]}))
        said = {**choice, "delta": {"content": words}, "finish_reason": None}
        return self._shown({**chunk, "choices": [said]})

    def _hold(self, chunk: Chunk, event: bytes, *, said: bool) -> bytes:
        """What comes behind a call waits for what becomes of the call; words go on."""
        if said:
            return self._shown(chunk)
        self._held.append(event)
        return b""

    def _judge(self) -> bytes:
        """What is shown of the calls: all as they came, the client's alone, or nothing."""
        calls = self._calling.whole()
        ours = [call for call in calls if call["function"]["name"] in self._own]
        theirs = [call for call in calls if call["function"]["name"] not in self._own]
        held, self._held = self._held, []
        if not ours and self._first:
            return b"".join(held)
        if ours and not theirs and not self._last:
            self.calls = ours
            return b""
        self.aside = () if self._last else ours
        return self._rest(theirs)

    def _rest(self, theirs: Sequence[dict[str, Any]]) -> bytes:
        """The client's calls as one delta, the finish, and what all rounds used."""
        indexed = [{"index": index, **call} for index, call in enumerate(theirs)]
        base = {"index": 0, "logprobs": None}
        called = {**base, "delta": {"tool_calls": indexed}, "finish_reason": None}
        finish: Chunk = {**base, "delta": {}, "finish_reason": "tool_calls" if theirs else "stop"}
        chunks: list[Chunk] = [{"choices": [called]}] if theirs else []
        chunks.append({"choices": [finish]})
        if self._usages:
            chunks.append({"choices": [], "usage": summed(self._usages)})
        return b"".join(map(self._shown, chunks))

    def _renamed(
        self, chunk: Chunk, choice: dict[str, Any], delta: dict[str, Any], usage: dict[str, Any]
    ) -> bytes:
        """A chunk of a later round as one of the first's."""
        if usage:
            chunk = {**chunk, "usage": summed([*self._usages, usage])}
        if choice:
            delta = {name: value for name, value in delta.items() if name != "role"}
            if not any(delta.values()) and not choice.get("finish_reason") and not usage:
                return b""
            chunk = {**chunk, "choices": [{**choice, "delta": delta}]}
        return self._shown(chunk)

    def _shown(self, chunk: Chunk) -> bytes:
        return _event_of({**chunk, **self._envelope})


def _event_of(chunk: Chunk) -> bytes:
    return b"data: " + msgspec.json.encode(chunk) + b"\n\n"
