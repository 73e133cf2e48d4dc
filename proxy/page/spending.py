"""What a turn cost in tokens, and how much of its prompt the model had seen before."""

from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any

import msgspec

from filters.message import Message
from filters.tokens import in_message
from proxy.answer.sse import data_of, events

_KNOWN = ("role", "content", "tool_calls")


class Spending(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens. ``prompt`` is an estimate, ``stayed`` the part of it that stands as it stood a turn before.

    ``reported`` is the upstream's own usage; what it does not say is ``None``.
    """

    prompt: int
    stayed: int | None
    reported: int | None
    cached: int | None
    answered: int | None

    @property
    def share(self) -> float | None:
        """The part of the prompt that stayed, from 0 to 1; ``None`` where no turn before is kept."""
        return None if self.stayed is None else self.stayed / max(1, self.prompt)


def spending(body: bytes, answer: bytes, before: bytes | None) -> Spending:
    """What a turn cost; ``before`` is the body that was sent a turn before."""
    sent = _messages(body)
    known = _messages(before) if before else []
    stayed = [one for one, _ in takewhile(lambda pair: pair[0] == pair[1], zip(sent, known, strict=False))]
    usage = _usage(answer)
    details = usage.get("prompt_tokens_details")
    return Spending(
        prompt=sum(map(_tokens, sent)),
        stayed=sum(map(_tokens, stayed)) if before else None,
        reported=_number(usage.get("prompt_tokens")),
        cached=_number(details.get("cached_tokens")) if isinstance(details, dict) else None,
        answered=_number(usage.get("completion_tokens")),
    )


def _messages(body: bytes) -> Sequence[Mapping[str, Any]]:
    try:
        found = msgspec.json.decode(body)["messages"]
    except (msgspec.DecodeError, KeyError, TypeError):
        return []
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def _tokens(message: Mapping[str, Any]) -> int:
    try:
        known = {name: message[name] for name in _KNOWN if name in message}
        return in_message(msgspec.convert(known, Message))
    except (msgspec.ValidationError, TypeError):
        return 0


def _usage(answer: bytes) -> Mapping[str, Any]:
    """The last usage that an answer tells of, a stream's or a whole one's."""
    if answer.lstrip()[:1] == b"{":
        return _usage_of(answer)
    for event in reversed([event for event in events(answer) if b'"usage"' in event]):
        if found := _usage_of(data_of(event)):
            return found
    return {}


def _usage_of(data: bytes | None) -> Mapping[str, Any]:
    try:
        chunk = msgspec.json.decode(data or b"null")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    usage = chunk.get("usage") if isinstance(chunk, dict) else None
    return usage if isinstance(usage, dict) else {}


def _number(given: object) -> int | None:
    return given if type(given) is int else None
