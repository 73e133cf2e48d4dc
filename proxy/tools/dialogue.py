"""The rounds of one turn that are done: the model's calls of memory tools, and their results."""

import asyncio
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from filters.message import Message
from proxy.answer.transcript import transcript
from proxy.tools.chunk import decode_object
from proxy.tools.offer import Offer

Call = dict[str, Any]
_WITHIN = 2.0
"""For how many seconds a caller may wait for the calls of one round."""


class Carrying(Protocol):
    """Carries out the calls of one turn."""

    async def run(self, name: str, arguments: str, until: float) -> str:
        """What the model is told, as JSON, and when the loop's time is ``until`` at the latest.

        A fault is told as well, and raised never. What is told to be changed is owed until it is kept.
        """
        ...

    @property
    def has_pending(self) -> bool:
        """Whether anything is owed."""
        ...

    def commit(self) -> None:
        """Begins to change what is owed; it never waits."""
        ...

    async def settle(self) -> None:
        """Changes what is owed; returns once that is done, or would take too long."""
        ...


class Tools(msgspec.Struct, frozen=True):
    """What one turn may call, who carries it out, and how often the model may be asked again."""

    offer: Offer
    runner: Carrying
    max_rounds: int


class Round(Protocol):
    """One round as it was heard: what was said in it, what is to be carried out, and what it took.

    ``calls`` are ours to carry out before the model goes on, ``aside`` ours that were called beside the
    client's own. It is ``mute`` where ours were called in vain, and nobody was told anything.
    """

    text: str
    calls: Sequence[Call]
    side_calls: Sequence[Call]
    usage: dict[str, Any]
    silent: bool


class Dialogue:
    """The rounds of one turn that are done, whichever upstreams they were done with.

    Whoever is asked next goes on from ``said``, so that no call is carried out twice. ``rounds`` is how often
    tools were carried out before the model went on, and ``usages`` what each of those rounds took.
    """

    def __init__(self, tools: Tools) -> None:
        self.names = tools.offer.names
        self.rounds = 0
        self.messages: list[Message] = []
        self.usages: list[dict[str, Any]] = []
        self._kit = tools.runner
        self._most = tools.max_rounds
        self._carrying = asyncio.Lock()
        self._speaker: object = None

    @property
    def is_last_round(self) -> bool:
        """Whether the model is asked for the last time, and may not call our tools."""
        return self.rounds >= self._most

    @property
    def text(self) -> str:
        """What the model said beside its calls."""
        return "".join(message.text for message in self.messages if message.role == "assistant")

    def commit_if_reached(self, shown: bytes) -> None:
        """What tools have told to be changed is changed once anything of the answer has reached the client.

        ``shown`` is what went out to him, in whole events, or all of it.
        """
        if self._kit.has_pending and transcript(shown).has_content:
            self._kit.commit()

    async def settle(self) -> None:
        """The same at an answer's end, so that whoever asks then finds it changed."""
        await self._kit.settle()

    def assign_to(self, speaker: object) -> None:
        """What one answer says is what the client gets; no other has anything carried out."""
        self._speaker = speaker

    async def is_outdated(self, speaker: object, since: int) -> bool:
        """Whether tools were carried out ``since`` an answer was asked for that is not yet the client's."""
        if self._speaker is speaker:
            return False
        async with self._carrying:  # what is being carried out for another is to be known first
            return self.rounds != since

    def is_assigned_elsewhere(self, speaker: object) -> bool:
        """Whether the client gets another answer than this."""
        return self._speaker is not None and self._speaker is not speaker

    async def run_calls(self, heard: Round) -> None:
        """What was called is carried out, and told to whoever is asked next."""
        async with self._carrying:
            calls = [
                {**call, "id": call["id"] or self._named(place)} for place, call in enumerate(heard.calls)
            ]
            told = await self._told(calls)
            shown = [*map(_legible, calls)]
            self.messages += [Message(role="assistant", content=heard.text or None, tool_calls=shown), *told]
            self.usages += [heard.usage] if heard.usage else []
            self.rounds += 1

    async def run_side_calls(self, heard: Round, speaker: object) -> None:
        """What was called beside the client's own calls is carried out, and told to nobody."""
        async with self._carrying:
            self.assign_to(speaker)
            await self._told(heard.side_calls)

    async def _told(self, calls: Sequence[Call]) -> list[Message]:
        until, told = asyncio.get_running_loop().time() + _WITHIN, []
        for call in calls:
            function = call["function"]
            content = await self._kit.run(function["name"], function["arguments"], until)
            told.append(Message(role="tool", tool_call_id=call["id"], content=content))
        return told

    def _named(self, place: int) -> str:
        # Nine letters and digits are what the strictest of vendors takes.
        return f"call{self.rounds:03}{place:02}"


def _legible(call: Call) -> Call:
    """A call as any upstream takes it: templates decode what was given, and refuse what is no object."""
    function = call["function"]
    if isinstance(decode_object(function["arguments"].encode("utf-8", "replace")), dict):
        return call
    return {**call, "function": {**function, "arguments": "{}"}}
