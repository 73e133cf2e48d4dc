"""Several answers of a model made one: it calls memory tools, gets their results, and goes on."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from proxy.answer.response import Headers, Response, is_stream, read_all
from proxy.answer.sse import Framing, data_of, events
from proxy.answer.transcript import text_of
from proxy.errors import UpstreamBroken, UpstreamError, UpstreamTimeout
from proxy.tools.chunk import (
    CallAssembly,
    Chunk,
    decode_object,
    finish_reason,
    first_choice,
    function_name,
    has_content,
    normalize_call,
    object_in,
    sum_usage,
)
from proxy.tools.dialogue import Call, Dialogue, Round

Again = Callable[[float], Awaitable[Response]]
"""Asks the model to go on from the dialogue as it stands, until when. Raises UpstreamError on refusal."""
_LARGEST = 64_000_000
_LINGER = 1.0
"""For how many seconds an upstream may leave a round open behind its own end."""
_ENVELOPE = ("id", "object", "created", "model", "system_fingerprint", "service_tier")
_DONE = b"[DONE]"


class Rounds:
    """A response whose tool calls are carried out where they are ours; the client sees one answer.

    ``since`` is how many rounds were done when it was asked for. Where others are asked at the same time, it
    begins anew once it knows too little. All its rounds together have until ``due``, while nobody says
    otherwise.
    """

    def __init__(self, first: Response, again: Again, dialogue: Dialogue, since: int, due: float) -> None:
        self.status: int = first.status
        self.headers: Headers = first.headers
        self._response = first
        self._again = again
        self._dialogue = dialogue
        self._since = since
        self._due = due
        self._framing = Framing()
        self._streaming = is_stream(first.headers)
        self._streamed = StreamedRound(dialogue)
        self._completed = WholeRound(dialogue)
        self._ended = False

    async def read(self) -> bytes:
        """As a response's: what the client is to see, b"" at the end."""
        if self._ended:
            return b""
        return await (self._read_stream() if self._streaming else self._read_whole())

    def offer(self, take: Callable[[bytes], bool]) -> None:
        """As a response may: nothing is handed over, because all of it has to be looked at."""

    def due(self, at: float) -> None:
        """As a response's, for this round and those to come."""
        self._due = at
        self._response.due(at)

    def close(self) -> None:
        """Nothing more is wanted."""
        self._ended = True
        self._response.close()

    async def _read_stream(self) -> bytes:
        while not self._ended:
            data = await self._heard()
            if await self._behind():
                await self._ask_again()
                continue
            shown = self._streamed.feed(self._framing.feed(data) if data else self._framing.close())
            if not data:
                shown += self._streamed.close()
            await self._carry_on(self._streamed, ended=not data)
            if shown:
                return shown
        return b""

    async def _behind(self) -> bool:
        """Whether tools were called elsewhere since this was asked for; what has lost waits to be let go."""
        overtaken = await self._dialogue.is_outdated(self, self._since)
        if self._dialogue.is_assigned_elsewhere(self):
            await asyncio.sleep(self._due - asyncio.get_running_loop().time())
            raise UpstreamTimeout("Another upstream was to answer in its place.")
        return overtaken

    async def _heard(self) -> bytes:
        """What comes next; what breaks or stays open behind its own end is whole."""
        if self._streamed.ended and self._streamed.calls:
            self._response.due(min(self._due, asyncio.get_running_loop().time() + _LINGER))
        try:
            return await self._response.read()
        except UpstreamError:
            if not self._streamed.ended:
                raise
            return b""

    async def _read_whole(self) -> bytes:
        while not self._ended:
            shown = self._completed.feed(await read_all(self._response, _LARGEST))
            await self._carry_on(self._completed, ended=True)
            if shown:
                return shown
        return b""

    async def _carry_on(self, heard: Round, *, ended: bool) -> None:
        """Asks again where our tools were called alone; else the answer ends here.

        What is called beside the client's own calls is carried out before they go out: whoever has them may
        leave.
        """
        if heard.silent:
            raise UpstreamBroken("The model went on calling memory tools, and said nothing.")
        if heard.side_calls:
            await self._dialogue.run_side_calls(heard, self)
        if ended and heard.calls:
            await self._dialogue.run_calls(heard)
            await self._ask_again()
        elif ended:
            self._ended = True

    async def _ask_again(self) -> None:
        self._response.close()
        self._since = self._dialogue.rounds
        self._response = await self._again(self._due)
        if is_stream(self._response.headers) != self._streaming:
            raise UpstreamBroken("The upstream changed between a stream and a whole answer.")
        self._framing = Framing()
        self._streamed.begin()
        self._completed.begin()


class StreamedRound:
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
        self.ended = False
        self.calls: Sequence[Call] = ()
        self.side_calls: Sequence[Call] = ()
        self.usage: dict[str, Any] = {}
        self.silent = False
        self._finish: Any = "stop"
        self._calling = CallAssembly()
        self._held: list[bytes] = []

    def feed(self, whole: bytes) -> bytes:
        """What the client sees of whole events."""
        self.side_calls = ()
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
            self.ended = True
            shown = self.close()
            return shown if self.calls else shown + event
        chunk = decode_object(data) if data else None
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
        self.text += text_of(delta)
        self._carried = self._carried or has_content(delta)
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
        ours = any(function_name(call) in self._dialogue.names for call in self._calling.calls())
        held = [] if ours else self._held
        self._held, self._calling = [], CallAssembly()
        return b"".join([*held, event])

    def _judge(self) -> bytes:
        """What is shown of the calls: all as they came, the client's alone, or nothing."""
        calls = self._calling.calls()
        ours = [call for call in calls if function_name(call) in self._dialogue.names]
        theirs = [call for call in calls if function_name(call) not in self._dialogue.names]
        held, self._held = self._held, []
        if not ours and self._first:
            return b"".join(held)
        if ours and not theirs and not self._dialogue.is_last_round:
            self.calls = ours
            return b""
        self.side_calls = () if self._dialogue.is_last_round else ours
        self.silent = bool(ours) and not (theirs or self._carried)
        return b"" if self.silent else self._rest(theirs)

    def _rest(self, theirs: Sequence[Call]) -> bytes:
        """The client's calls as one delta, the finish, and what all rounds used."""
        indexed = [{"index": index, **call} for index, call in enumerate(theirs)]
        base = {"index": 0, "logprobs": None}
        called = {**base, "delta": {"tool_calls": indexed}, "finish_reason": None}
        finish: Chunk = {**base, "delta": {}, "finish_reason": finish_reason(self._finish, theirs)}
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
        return sum_usage([*self._dialogue.usages, self.usage])

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


class WholeRound:
    """Rounds of one whole answer: shown is the last, with the words of all and the tokens of all."""

    def __init__(self, dialogue: Dialogue) -> None:
        self._dialogue = dialogue
        self._first: Chunk = {}
        self.begin()

    def begin(self) -> None:
        """The next round begins."""
        self.text = ""
        self.calls: Sequence[Call] = ()
        self.side_calls: Sequence[Call] = ()
        self.usage: dict[str, Any] = {}
        self.silent = False

    def feed(self, body: bytes) -> bytes:
        """What the client sees of a round's body: nothing where the model has to be asked again."""
        answer = decode_object(body)
        choice = first_choice(answer or {})
        if answer is None or not choice:
            return body  # an error under the status 200 is no round
        self._note(answer, object_in(choice, "message"))
        given = object_in(choice, "message").get("tool_calls")
        calls = [call for call in given if isinstance(call, dict)] if isinstance(given, list) else []
        ours = [normalize_call(call) for call in calls if function_name(call) in self._dialogue.names]
        theirs = [call for call in calls if function_name(call) not in self._dialogue.names]
        if not ours and not self._dialogue.rounds:
            return body
        if ours and not theirs and not self._dialogue.is_last_round:
            self.calls = ours
            return b""
        self.side_calls = () if self._dialogue.is_last_round else ours
        said = self._dialogue.text or has_content(object_in(choice, "message"))
        self.silent = bool(ours) and not (theirs or said)
        return self._joined(answer, choice, theirs)

    def _note(self, answer: Chunk, message: dict[str, Any]) -> None:
        self._first = self._first or answer
        self.text = text_of(message)
        self.usage = object_in(answer, "usage")

    def _joined(self, answer: Chunk, choice: dict[str, Any], theirs: Sequence[Call]) -> bytes:
        message = object_in(choice, "message")
        said = {name: value for name, value in message.items() if name != "tool_calls"}
        said["content"] = _behind(self._dialogue.text, message.get("content"))
        if theirs:
            said["tool_calls"] = [*theirs]
        finish = finish_reason(choice.get("finish_reason"), theirs)
        named: Chunk = {name: self._first[name] for name in ("id", "created", "model") if name in self._first}
        whole: Chunk = {**answer, **named, "choices": [{**choice, "message": said, "finish_reason": finish}]}
        if used := [each for each in (*self._dialogue.usages, self.usage) if each]:
            whole["usage"] = sum_usage(used)
        return msgspec.json.encode(whole)


def _behind(before: str, content: Any) -> Any:
    """What was said in the last round, behind the words of those before it."""
    if isinstance(content, list):
        return [{"type": "text", "text": before}, *content] if before else content
    return before + (content if isinstance(content, str) else "") or None
