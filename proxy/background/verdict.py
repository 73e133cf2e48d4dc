"""What a model's answer is worth that nobody hears: its words, or why there are none that can be used."""

import re
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import Any, Final

from proxy.answer.framing import data_of, events
from proxy.answer.payload import Garbled, payload
from proxy.answer.transcript import transcript
from proxy.errors import UpstreamBroken, UpstreamError, UpstreamRefused
from proxy.memory.faults import Unusable
from proxy.tools.chunk import first_choice, object_in

# OpenAI's names, then those that other servers have for the same.
_CUT: Final = frozenset(
    ("length", "max_tokens", "model_length", "abort", "aborted", "error", "insufficient_system_resource")
)
_BARRED: Final = frozenset(
    ("content_filter", "refusal", "safety", "recitation", "blocklist", "prohibited_content", "sensitive")
)
_OPENED: Final = re.compile(
    r"<(?:think|thinking|thought|reasoning)\s*>|\[THINK\]|<\|channel\|>", re.IGNORECASE
)
_CLOSED: Final = re.compile(
    r"</(?:think|thinking|thought|reasoning)>|\[/THINK\]|<\|channel\|>final<\|message\|>", re.IGNORECASE
)
_MARKS: Final = ("<|return|>", "<|end|>", "<|im_end|>", "<|eot_id|>")
_UNSUITED: Final = (
    HTTPStatus.BAD_REQUEST,
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    HTTPStatus.UNPROCESSABLE_ENTITY,
)
_TOO_LONG: Final = re.compile(
    rb"context[ _](?:length|size|window)|(?:prompt|input|request)s? (?:is|are) too (?:long|large)"
    rb"|reduce the length|maximum (?:number of )?(?:input )?tokens|too many (?:input )?tokens",
    re.IGNORECASE,
)
_CENSORED: Final = re.compile(rb"content_filter|content_policy|ResponsibleAIPolicy|data_inspection_failed")
_READ: Final = 4_000


class SaidNothing(UpstreamBroken, Unusable):
    """A model answered to the end, and said nothing."""


class CutShort(UpstreamBroken, Unusable):
    """A model's answer was cut before its end."""


class Declined(UpstreamBroken, Unusable):
    """A model would not answer, or was not let."""


class Overlong(UpstreamBroken, Unusable):
    """A model was shown more than it takes at once."""


def words(content: bytes) -> str:
    """What a model said to the end, less its thoughts; raises UpstreamBroken for anything less."""
    ends = [*_ends(content)]
    if any(barred for _, barred in ends):
        raise Declined("The model declined to answer.")
    if any(cut for cut, _ in ends):
        raise CutShort("The model's answer was cut short.")
    told = transcript(content)
    said = _bare(told.text)
    if not said:
        raise (SaidNothing if told.finished else UpstreamBroken)("The model said nothing.")
    if not told.finished or _OPENED.match(said):
        raise CutShort("The model's answer broke off.")
    return said


def _bare(text: str) -> str:
    """What stands behind the last thought, without the marks that some templates leave at the end."""
    # Found one by one: with what stands before, a long answer would be looked through once for each letter.
    ends = [found.end() for found in _CLOSED.finditer(text)]
    said = text[ends[-1] if ends else 0 :].strip()
    for mark in _MARKS:
        said = said.removesuffix(mark).rstrip()
    return said


def fault(status: int, content: bytes, headers: Mapping[str, str]) -> UpstreamError:
    """What a status that is no success says of what was asked, or of when to ask again."""
    if status in _UNSUITED and _CENSORED.search(content, 0, _READ):
        return Declined(f"The upstream answered {status}: it declined to answer.")
    if status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE or (
        status in _UNSUITED and _TOO_LONG.search(content, 0, _READ)
    ):
        return Overlong(f"The upstream answered {status}: it was asked too much at once.")
    return UpstreamRefused(status, content, headers)


def _ends(content: bytes) -> Iterator[tuple[bool, bool]]:
    """Of each piece of an answer whether it says that it was cut, and that it is a refusal."""
    for choice in map(first_choice, _chunks(content)):
        reason = str(choice.get("finish_reason") or "").lower()
        said = object_in(choice, "message") or object_in(choice, "delta")
        yield reason in _CUT, reason in _BARRED or _refuses(said)


def _refuses(said: dict[str, Any]) -> bool:
    content = said.get("content")
    parts = content if isinstance(content, list) else ()
    return bool(said.get("refusal")) or any(
        isinstance(part, dict) and part.get("type") == "refusal" for part in parts
    )


def _chunks(content: bytes) -> Iterator[dict[str, Any]]:
    whole = content.lstrip()[:1] == b"{"
    for data in [content] if whole else map(data_of, events(content)):
        try:
            chunk = payload(data)
        except Garbled:
            continue
        if isinstance(chunk, dict):
            yield chunk
