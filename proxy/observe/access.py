"""One line in the log for each turn, written when the turn has ended."""

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from filters.message import newest_words
from proxy.answer.transcript import transcript
from proxy.observe.log import LogEntry
from proxy.observe.observation import Observation, TurnReport

_MOST_NAMED = 10
_LONGEST = 300
_MOST = 2000
_EVERY: Final = 60.0
_log = logging.getLogger("turnkeeper")


_turns_log = logging.getLogger("turnkeeper.turns")


def log_turn(account: TurnReport, reason: str | None, words: Mapping[str, str]) -> None:
    """Writes an account down: ids, times and counts, why it failed, if it did, and ``words`` where wanted."""
    failed = account.state == "failed"
    level = logging.WARNING if failed else logging.INFO
    if _turns_log.isEnabledFor(level):
        why = {"reason": reason[:_LONGEST]} if failed and reason else {}
        _turns_log.log(level, LogEntry(f"turn {account.state}", {**fields_of(account), **why, **words}))


def fields_of(account: TurnReport) -> dict[str, Any]:
    """What the log says of an account; lengths of time in milliseconds. What is not known is left out."""
    known = {
        "turn": account.id,
        "request": account.request,
        "tenant": account.tenant,
        "session": account.session,
        "user": account.user,
        "number": account.turn,
        "pipeline": account.pipeline,
        "upstream": account.upstream,
        "model": account.model,
        "outcome": account.outcome,
        "status": account.status,
        "code": account.code,
        **{f"{stage}_ms": _milliseconds(seconds) for stage, seconds in account.stages},
        "first_token_ms": _milliseconds(account.first_token),
        "duration_ms": _milliseconds(account.duration),
        "input_tokens": account.input_tokens,
        "output_tokens": account.output_tokens,
        "degraded": ",".join(account.degraded) or None,
        "ignored": ",".join(account.ignored[:_MOST_NAMED]) or None,
    }
    return {name: value for name, value in known.items() if value is not None}


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 2)


def transcript_fields(watch: Observation) -> dict[str, str]:
    """The user's newest words and the answer's, each cut at 2000 characters."""
    said = transcript(b"".join(watch.chunks)).text
    return {"asked": newest_words(watch.messages)[:_MOST], "answered": said[:_MOST]}


class RefusalLog:
    """The first is told at once, and those of the minute behind it together, by the error's code."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._next: asyncio.TimerHandle | None = None

    def add(self, code: str) -> None:
        """One more."""
        self._counts[code] += 1
        if self._next is None:
            self._again()

    def flush(self) -> None:
        """What has not been told is told now, and nothing later."""
        if self._next is not None:
            self._next.cancel()
            self._next = None
        for code, count in self._counts.items():
            _log.warning(LogEntry("requests refused", {"code": code, "count": count}))
        self._counts.clear()

    def _again(self) -> None:
        any_ = bool(self._counts)
        self.flush()
        self._next = asyncio.get_running_loop().call_later(_EVERY, self._again) if any_ else None
