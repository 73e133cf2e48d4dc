"""Rounds of memory tools within one turn, whose texts and calls are joined into one answer."""

import asyncio
import weakref
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec

from filters.base import Fields
from filters.message import Message
from proxy.answer.response import LARGEST_ANSWER, Headers, Response, is_stream, read_all
from proxy.answer.sse import DONE, Framing, data_of, encode_json, events, whole_characters
from proxy.answer.stream_filters import chunk_event
from proxy.answer.transcript import (
    Chunk,
    assemble_calls,
    decode_object,
    finish_reason,
    first_choice,
    function_name,
    has_whole_arguments,
    normalize_call,
    object_in,
    sum_usage,
    text_of,
    transcript,
)
from proxy.errors import UpstreamBroken, UpstreamError, UpstreamTimeout
from proxy.tools.memory_tools import MemoryTools, Offer

Call = dict[str, Any]
_ROUND_TIMEOUT = 2.0
"""How many seconds the calls of one round may take."""
Ask = Callable[[float], Awaitable[Response]]
"""Asks the model to continue the dialogue, by a deadline in loop time. Raises UpstreamError."""

_NOT_DONE = '{"error": "This was not done: no tool can be called any more. Answer now."}'
_LINGER = 1.0
"""How many seconds an upstream may keep a stream open after its end."""
_ENVELOPE = ("id", "object", "created", "model", "system_fingerprint", "service_tier")


class Tools(msgspec.Struct, frozen=True):
    """The memory tools of one turn, their runner, and how often the model may be asked again."""

    offer: Offer
    runner: MemoryTools
    max_rounds: int


class Round:
    """One answer of the model in a turn.

    ``calls`` are calls of memory tools, to be run before the model continues; ``side_calls`` came together
    with calls of the client's tools. ``text`` and ``usage`` are the answer's text and token counts.
    """

    def __init__(self, dialogue: "Dialogue") -> None:
        self._dialogue = dialogue
        self.begin()

    def begin(self) -> None:
        """Starts over, for the next answer."""
        self.text = ""
        self.calls: Sequence[Call] = ()
        self.side_calls: Sequence[Call] = ()
        self.usage: dict[str, Any] = {}

    def _split(self, calls: Sequence[Call]) -> tuple[list[Call], list[Call]]:
        """The calls of memory tools, and those of the client's own tools."""
        ours = [call for call in calls if function_name(call) in self._dialogue.names]
        return ours, [call for call in calls if function_name(call) not in self._dialogue.names]

    def _take_calls(self, ours: Sequence[Call], theirs: Sequence[Call]) -> bool:
        """Sets which calls of memory tools are to run; returns whether this round ends the answer.

        Raises UpstreamBroken for an answer without a word whose memory tools were withdrawn in vain.
        """
        dialogue = self._dialogue
        says_something = bool(theirs or (dialogue.text + self.text).strip())
        if ours and not says_something and dialogue.is_withdrawn:
            raise UpstreamBroken("The model called only memory tools, and gave no answer.")
        if ours and not theirs and not (dialogue.is_last_round and says_something):
            self.calls = ours
            return False
        self.side_calls = () if dialogue.is_last_round else ours
        return True


class Dialogue:
    """The finished rounds of one turn, with whichever upstreams.

    The next upstream continues from ``messages``, so that no call runs twice. ``rounds`` is how often tools
    have run and the model was asked again; ``usages`` are the token counts of these rounds.
    """

    def __init__(self, tools: Tools) -> None:
        self._offer = tools.offer
        self.names = tools.offer.names
        self.rounds = 0
        self.messages: list[Message] = []
        self.usages: list[dict[str, Any]] = []
        self._runner = tools.runner
        self._max_rounds = tools.max_rounds
        self._running = asyncio.Lock()
        # Weak, because the response refers to this.
        self._response: weakref.ref[Response] | None = None

    @property
    def is_last_round(self) -> bool:
        """Whether the model may not call memory tools any more: calls of this round do not run."""
        return self.rounds >= self._max_rounds

    @property
    def is_withdrawn(self) -> bool:
        """Whether no memory tool is offered any more, since the model called one in the last round."""
        return self.rounds > self._max_rounds

    @property
    def fields(self) -> Fields:
        """The fields of the next request."""
        if self.is_withdrawn:
            return self._offer.client_fields
        return self._offer.final_fields if self.is_last_round else self._offer.fields

    @property
    def text(self) -> str:
        """The text of all finished rounds."""
        return "".join(message.text for message in self.messages if message.role == "assistant")

    def commit_if_reached(self, data: bytes) -> None:
        """Starts to make the tools' changes once any content of the answer has reached the client.

        ``data`` is the sent part of the answer, in whole events, or the whole body.
        """
        if self._runner.has_pending and transcript(data).has_content:
            self._runner.commit()

    async def settle(self) -> None:
        """Makes the tools' changes at the end of an answer, so that the next turn finds them."""
        await self._runner.settle()

    def assign_to(self, response: Response) -> None:
        """Records that the client gets this response; no tools run for another one any more."""
        self._response = weakref.ref(response)

    async def is_outdated(self, response: Response, since: int) -> bool:
        """Whether tools have run for another response; false once the client gets this one.

        ``since`` is how many rounds were finished when this response was requested.
        """
        if self._response and self._response() is response:
            return False
        async with self._running:  # the calls of another response have to end first
            return self.rounds != since

    def is_assigned_elsewhere(self, response: Response) -> bool:
        """Whether the client gets another response."""
        return self._response is not None and self._response() is not response

    async def run_calls(self, done: Round) -> None:
        """Runs the calls of a round, and adds them and their results to ``messages``."""
        async with self._running:
            # Nine letters and digits are the only ids that the strictest provider accepts.
            calls = [
                {**call, "id": call["id"] or f"call{self.rounds:03}{i:02}"}
                for i, call in enumerate(done.calls)
            ]
            text, calls = whole_characters(done.text), whole_characters(calls)
            results = await self._results(calls)
            # Chat templates decode the arguments, and require an object.
            valid_calls = [
                call
                if has_whole_arguments(call)
                else {**call, "function": {**call["function"], "arguments": "{}"}}
                for call in calls
            ]
            self.messages.append(Message(role="assistant", content=text or None, tool_calls=valid_calls))
            self.messages += results
            self.usages += [done.usage] if done.usage else []
            self.rounds += 1

    async def run_side_calls(self, done: Round, response: Response) -> None:
        """Runs calls that came together with calls of the client's tools; the model gets no results."""
        async with self._running:
            self.assign_to(response)
            await self._results(whole_characters(done.side_calls))

    async def _results(self, calls: Sequence[Call]) -> list[Message]:
        until, results = asyncio.get_running_loop().time() + _ROUND_TIMEOUT, []
        for call in calls:
            function, content = call["function"], _NOT_DONE
            if not self.is_last_round:
                content = await self._runner.run(function["name"], function["arguments"], until)
            results.append(Message(role="tool", tool_call_id=call["id"], content=content))
        return results


class Rounds(Response):
    """A response whose calls of memory tools are run, so that the client gets one answer.

    ``since`` is how many rounds were finished when ``first`` was requested: if tools have run for another
    response since, the model is asked again. ``due`` is the deadline of all rounds, in loop time.
    """

    def __init__(self, first: Response, ask: Ask, dialogue: Dialogue, since: int, due: float) -> None:
        self.status: int = first.status
        self.headers: Headers = first.headers
        self._response = first
        self._ask = ask
        self._dialogue = dialogue
        self._since = since
        self._due = due
        self._framing = Framing()
        self._is_stream = is_stream(first.headers)
        self._streamed = StreamedRound(dialogue)
        self._whole = WholeRound(dialogue)
        self._ended = False

    async def read(self) -> bytes:
        """Returns the next bytes for the client, b"" at the end. Raises UpstreamError."""
        while not self._ended:
            if self._is_stream:
                data = await self._read_events()
            else:
                data = self._whole.feed(await read_all(self._response, LARGEST_ANSWER))
                await self._run_tools(self._whole, ended=True)
            if data:
                return data
        return b""

    def due(self, at: float) -> None:
        """Sets the deadline of this round and all later ones."""
        self._due = at
        self._response.due(at)

    def close(self) -> None:
        """Ends the round at once."""
        self._ended = True
        self._response.close()
        self._ask = _ask_nothing  # what asks refers to this response

    async def _read_events(self) -> bytes:
        current, loop = self._streamed, asyncio.get_running_loop()
        if current.ended and current.calls:
            self._response.due(min(self._due, loop.time() + _LINGER))
        try:
            data = await self._response.read()
        except UpstreamError:
            if not current.ended:  # an error after the end of the answer does not matter
                raise
            data = b""
        outdated = await self._dialogue.is_outdated(self, self._since)
        if self._dialogue.is_assigned_elsewhere(self):  # the owner will close this response
            await asyncio.sleep(self._due - loop.time())
            raise UpstreamTimeout("Another upstream was to answer in its place.")
        if outdated:
            await self._ask_again()
            return b""
        output = current.feed(self._framing.feed(data) if data else self._framing.close())
        if not data:
            output += current.close()
        await self._run_tools(current, ended=not data)
        return output

    async def _run_tools(self, current: Round, *, ended: bool) -> None:
        """Runs the calls of memory tools; then asks the model again, unless the client's tools were called.

        Memory tools run before calls of the client's tools go out: a client that has these may hang up.
        """
        if current.side_calls:
            await self._dialogue.run_side_calls(current, self)
        if ended and current.calls:
            await self._dialogue.run_calls(current)
            await self._ask_again()
        elif ended:
            self._ended = True

    async def _ask_again(self) -> None:
        self._response.close()
        self._since = self._dialogue.rounds
        self._response = await self._ask(self._due)
        if is_stream(self._response.headers) != self._is_stream:
            raise UpstreamBroken("The upstream changed between a stream and a whole answer.")
        self._framing = Framing()
        self._streamed.begin()
        self._whole.begin()


async def _ask_nothing(_due: float) -> Response:
    raise UpstreamBroken("The answer was closed.")


class StreamedRound(Round):
    """Rounds of one stream: text is passed on at once, calls are held until all of them have arrived.

    ``ended`` is whether the end of the stream has been read. A first round without calls passes unchanged;
    later rounds get the id of the stream's first round.
    """

    def __init__(self, dialogue: Dialogue) -> None:
        self._envelope: Chunk = {}
        self._role_sent = False
        super().__init__(dialogue)

    def begin(self) -> None:
        """Starts over, for the next answer."""
        super().begin()
        self.ended = False
        self._finish: Any = "stop"
        self._pieces: list[Chunk] = []
        self._pending: list[bytes] = []

    def feed(self, data: bytes) -> bytes:
        """Takes whole events; returns the events for the client."""
        self.side_calls = ()
        return b"".join(map(self._event, events(data)))

    def close(self) -> bytes:
        """Ends the round; returns the events for the client that were held back."""
        if not self._pending:
            return b""
        pending, self._pending = self._pending, []
        ours, theirs = self._split(self._assembled_calls)
        if not ours and not self._dialogue.rounds:
            return b"".join(pending)
        if not self._take_calls(ours, theirs):
            return b""
        # The client's calls as one delta, the finish, and the token counts of all rounds.
        base = {"index": 0, "logprobs": None}
        chunks: list[Chunk] = []
        if theirs:
            indexed = [{"index": index, **call} for index, call in enumerate(theirs)]
            chunks.append({"choices": [{**base, "delta": {"tool_calls": indexed}, "finish_reason": None}]})
        reason = finish_reason(self._finish, theirs)
        chunks.append({"choices": [{**base, "delta": {}, "finish_reason": reason}]})
        if usage := self._total_usage():
            chunks.append({"choices": [], "usage": usage})
        return b"".join(map(self._client_event, chunks))

    def _event(self, event: bytes) -> bytes:
        data = data_of(event)
        if data == DONE:
            self.ended = True
            rest = self.close()
            return rest if self.calls else rest + event
        chunk = decode_object(data) if data else None
        if chunk is None:
            return event
        # An error follows the calls of the client's tools; calls of memory tools before it do not run.
        if chunk.get("error"):
            ours, _ = self._split(self._assembled_calls)
            pending = [] if ours else self._pending
            self._pending, self._pieces = [], []
            return b"".join([*pending, event])
        self._envelope = self._envelope or {name: chunk[name] for name in _ENVELOPE if name in chunk}
        choice = first_choice(chunk)
        delta = object_in(choice, "delta")
        # Some servers send the running totals in every chunk: the last ones count.
        self.usage = object_in(chunk, "usage") or self.usage
        self._finish = choice.get("finish_reason") or self._finish
        self.text += text_of(delta)
        if pieces := delta.get("tool_calls"):
            self._pieces.append({"tool_calls": pieces})
        if pieces or self._pending:
            return self._hold(chunk, choice, delta, event)
        if not self._dialogue.rounds:
            self._role_sent = self._role_sent or bool(delta.get("role"))
            return event
        # A chunk of a later round continues the first one: without the role, with the usage of all rounds.
        usage = object_in(chunk, "usage")
        if usage:
            chunk = {**chunk, "usage": self._total_usage()}
        if choice:
            delta = {name: value for name, value in delta.items() if name != "role"}
            if not any(delta.values()) and not choice.get("finish_reason") and not usage:
                return b""
            chunk = {**chunk, "choices": [{**choice, "delta": delta}]}
        return self._client_event(chunk)

    def _hold(self, chunk: Chunk, choice: Mapping[str, Any], delta: Mapping[str, Any], event: bytes) -> bytes:
        """Holds a call and the events after it until all calls have arrived; returns text at once."""
        words = delta.get("content")
        if not isinstance(words, str) or not words:
            self._pending.append(event)
            return b""
        rest = {name: value for name, value in delta.items() if name not in {"content", "role"}}
        if any(rest.values()) or choice.get("finish_reason") or self.usage:
            self._pending.append(chunk_event({**chunk, "choices": [{**choice, "delta": rest}]}))
        text_choice = {**choice, "delta": {"content": words}, "finish_reason": None}
        without_usage = {name: value for name, value in chunk.items() if name != "usage"}
        return self._client_event({**without_usage, "choices": [text_choice]})

    @property
    def _assembled_calls(self) -> list[Call]:
        return [*map(normalize_call, assemble_calls(self._pieces) or ())]

    def _total_usage(self) -> dict[str, Any]:
        return sum_usage([*self._dialogue.usages, self.usage])

    def _client_event(self, chunk: Chunk) -> bytes:
        """The chunk as an event, with the id of the first round; the first choice gets the role."""
        if (choice := first_choice(chunk)) and not self._role_sent:
            self._role_sent = True
            delta = {"role": "assistant", **object_in(choice, "delta")}
            chunk = {**chunk, "choices": [{**choice, "delta": delta}]}
        return chunk_event({**chunk, **self._envelope})


class WholeRound(Round):
    """Rounds without a stream: the client gets the last answer, with the text and token counts of all."""

    def __init__(self, dialogue: Dialogue) -> None:
        self._first: Chunk = {}
        super().__init__(dialogue)

    def feed(self, body: bytes) -> bytes:
        """Takes a round's body; returns the body for the client, or b"" where the model is asked again."""
        answer = decode_object(body)
        choice = first_choice(answer or {})
        if answer is None or not choice:
            return body  # an error under the status 200
        message = object_in(choice, "message")
        self._first = self._first or answer
        self.text = text_of(message)
        self.usage = object_in(answer, "usage")
        calls = message.get("tool_calls")
        calls = [call for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []
        ours, theirs = self._split(calls)
        if not ours and not self._dialogue.rounds:
            return body
        if not self._take_calls([*map(normalize_call, ours)], theirs):
            return b""

        before, content = self._dialogue.text, message.get("content")
        if not isinstance(content, list):
            content = before + (content if isinstance(content, str) else "") or None
        elif before:
            content = [{"type": "text", "text": before}, *content]
        merged = {name: value for name, value in message.items() if name != "tool_calls"}
        merged["content"] = content
        if theirs:
            merged["tool_calls"] = theirs
        reason = finish_reason(choice.get("finish_reason"), theirs)
        named: Chunk = {name: self._first[name] for name in ("id", "created", "model") if name in self._first}
        whole = {**answer, **named, "choices": [{**choice, "message": merged, "finish_reason": reason}]}
        if usages := [usage for usage in (*self._dialogue.usages, self.usage) if usage]:
            whole["usage"] = sum_usage(usages)
        return encode_json(whole)
