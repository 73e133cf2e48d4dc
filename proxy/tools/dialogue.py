"""The rounds of one turn that are done: the model's calls of memory tools, and their results."""

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec

from filters.message import Message
from proxy.answer.sse import whole_characters
from proxy.answer.transcript import function_name, has_whole_arguments, transcript
from proxy.tools.memory_tools import MemoryTools, Offer

Call = dict[str, Any]
_ROUND_TIMEOUT = 2.0
"""How many seconds the calls of one round may take."""


class Tools(msgspec.Struct, frozen=True):
    """The tools that one turn offers, what runs them, and how often the model may be asked again."""

    offer: Offer
    runner: MemoryTools
    max_rounds: int


class Round:
    """One answer of the model in a turn.

    ``calls`` are of memory tools, to be run before the model goes on, and ``side_calls`` of memory tools that
    were called beside the client's own. ``text`` is what it says, and ``usage`` its token counts. It is
    ``silent`` where it calls memory tools that it may not call, and says nothing.
    """

    text: str
    calls: Sequence[Call]
    side_calls: Sequence[Call]
    usage: dict[str, Any]
    silent: bool

    def __init__(self, dialogue: "Dialogue") -> None:
        self._dialogue = dialogue
        self.begin()

    def begin(self) -> None:
        """Starts over, for the next answer."""
        self.text = ""
        self.calls = ()
        self.side_calls = ()
        self.usage = {}
        self.silent = False

    def _split(self, calls: Sequence[Call]) -> tuple[list[Call], list[Call]]:
        """The calls of memory tools, and those of the client's own tools."""
        ours = [call for call in calls if function_name(call) in self._dialogue.names]
        return ours, [call for call in calls if function_name(call) not in self._dialogue.names]

    def _take_calls(self, ours: Sequence[Call], theirs: Sequence[Call], *, says_something: bool) -> bool:
        """Notes which calls of memory tools are to run; whether this round is the client's last."""
        if ours and not theirs and not self._dialogue.is_last_round:
            self.calls = ours
            return False
        self.side_calls = () if self._dialogue.is_last_round else ours
        self.silent = bool(ours) and not (theirs or says_something)
        return True


class Dialogue:
    """The rounds of one turn that are done, whichever upstreams they were done with.

    The next upstream goes on from ``messages``, so that no call runs twice. ``rounds`` is how often tools ran
    before the model went on, and ``usages`` are the token counts of each of those rounds.
    """

    def __init__(self, tools: Tools) -> None:
        self.names = tools.offer.names
        self.rounds = 0
        self.messages: list[Message] = []
        self.usages: list[dict[str, Any]] = []
        self._runner = tools.runner
        self._max_rounds = tools.max_rounds
        self._running = asyncio.Lock()
        self._response: object = None

    @property
    def is_last_round(self) -> bool:
        """Whether the model is asked for the last time, and may not call memory tools."""
        return self.rounds >= self._max_rounds

    @property
    def text(self) -> str:
        """What the model said beside its calls."""
        return "".join(message.text for message in self.messages if message.role == "assistant")

    def commit_if_reached(self, data: bytes) -> None:
        """Makes the changes of tools once anything of the answer has reached the client.

        ``data`` is what went out, in whole events, or all of it.
        """
        if self._runner.has_pending and transcript(data).has_content:
            self._runner.commit()

    async def settle(self) -> None:
        """Makes the changes of tools at an answer's end, so that the next turn finds them."""
        await self._runner.settle()

    def assign_to(self, response: object) -> None:
        """Gives the client this response: no tools run for another one any more."""
        self._response = response

    async def is_outdated(self, response: object, since: int) -> bool:
        """Whether tools ran ``since`` a response was asked for that is not yet the client's."""
        if self._response is response:
            return False
        async with self._running:  # the calls of another response have to end first
            return self.rounds != since

    def is_assigned_elsewhere(self, response: object) -> bool:
        """Whether the client gets another response than this."""
        return self._response is not None and self._response is not response

    async def run_calls(self, done: Round) -> None:
        """Runs the calls of a round, for the model to go on from their results."""
        async with self._running:
            # Nine letters and digits are the only form of an id that the strictest of vendors takes.
            calls = [
                {**call, "id": call["id"] or f"call{self.rounds:03}{i:02}"}
                for i, call in enumerate(done.calls)
            ]
            text, calls = whole_characters(done.text), whole_characters(calls)
            results = await self._results(calls)
            shown = [_with_object_arguments(call) for call in calls]
            self.messages.append(Message(role="assistant", content=text or None, tool_calls=shown))
            self.messages += results
            self.usages += [done.usage] if done.usage else []
            self.rounds += 1

    async def run_side_calls(self, done: Round, response: object) -> None:
        """Runs the calls beside the client's own; the model does not get their results."""
        async with self._running:
            self.assign_to(response)
            await self._results(whole_characters(done.side_calls))

    async def _results(self, calls: Sequence[Call]) -> list[Message]:
        until, results = asyncio.get_running_loop().time() + _ROUND_TIMEOUT, []
        for call in calls:
            function = call["function"]
            content = await self._runner.run(function["name"], function["arguments"], until)
            results.append(Message(role="tool", tool_call_id=call["id"], content=content))
        return results


def _with_object_arguments(call: Call) -> Call:
    """A call as any upstream takes it: chat templates decode the arguments, and want an object."""
    function = call["function"]
    if has_whole_arguments(call):
        return call
    return {**call, "function": {**function, "arguments": "{}"}}
