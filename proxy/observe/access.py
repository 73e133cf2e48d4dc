"""The access log: a line for each turn that has ended, and counts of what is warned of once a minute."""

import asyncio
import logging
import secrets
from collections import Counter
from hashlib import blake2b
from typing import Any, Final

import msgspec

from filters.message import newest_words
from proxy.answer.transcript import transcript
from proxy.observe.log import LogEntry
from proxy.observe.observation import Observation, TurnReport

_MOST_IGNORED: Final = 10
_LONGEST_REASON: Final = 300
_LONGEST_TEXT: Final = 2000
_EVERY: Final = 60.0
# Made before worker processes are forked, so that they share it; it is stored nowhere, so that once the
# server has ended no id can be tried on its log.
_USER_KEY: Final = secrets.token_bytes(32)
_USER_DIGEST: Final = 8

_log = logging.getLogger("turnkeeper")
_turns_log = logging.getLogger("turnkeeper.turns")


def log_turn(turn: TurnReport, observation: Observation, *, with_text: bool) -> None:
    """Logs a turn: ids, times and counts, the reason if it failed.

    ``with_text`` adds the user's newest words and the answer, each cut at 2000 characters.
    """
    state = turn.state
    failed = state == "failed"
    level = logging.WARNING if failed else logging.INFO
    if not _turns_log.isEnabledFor(level):
        return
    fields = fields_of(turn)
    if failed and observation.reason:
        fields["reason"] = observation.reason[:_LONGEST_REASON]
    if with_text:
        messages = observation.content.messages if observation.content else ()
        fields["asked"] = newest_words(messages)[:_LONGEST_TEXT]
        fields["answered"] = transcript(observation.answer.data).text[:_LONGEST_TEXT]
    _turns_log.log(level, LogEntry(f"turn {state}", fields))


def fields_of(turn: TurnReport) -> dict[str, Any]:
    """The log's fields of a turn that are not ``None``; durations in milliseconds."""
    seconds = {
        **{f"{stage}_ms": duration for stage, duration in turn.stages},
        "first_token_ms": turn.first_token,
        "duration_ms": turn.duration,
    }
    fields = {
        "turn": turn.id,
        "request": turn.request,
        "tenant": turn.tenant,
        "session": turn.session,
        "user": None if turn.user is None else user_digest(turn.tenant, turn.user),
        "number": turn.turn,
        "pipeline": turn.pipeline,
        "upstream": turn.upstream,
        "model": turn.model,
        "outcome": turn.outcome,
        "status": turn.status,
        "code": turn.code,
        **{name: None if value is None else round(value * 1000, 2) for name, value in seconds.items()},
        "input_tokens": turn.input_tokens,
        "output_tokens": turn.output_tokens,
        "degraded": ",".join(turn.degraded) or None,
        "ignored": ",".join(turn.ignored[:_MOST_IGNORED]) or None,
    }
    return {name: value for name, value in fields.items() if value is not None}


def user_digest(tenant: str, user: str) -> str:
    """What stands in the log in the place of a user's id: the same as long as the server runs."""
    text = msgspec.json.encode((tenant, user.encode("utf-8", "surrogatepass")))
    return blake2b(text, key=_USER_KEY, digest_size=_USER_DIGEST).hexdigest()


class MinuteLog:
    """Warns of a first event at once, then of each minute's events, with their counts by ``field``."""

    def __init__(self, message: str, field: str) -> None:
        self._message = message
        self._field = field
        self._counts: Counter[str] = Counter()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, value: str) -> None:
        """Counts an event."""
        self._counts[value] += 1
        if self._timer is None:
            self._log_counts()

    def flush(self) -> None:
        """Logs what has not been logged, and stops the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for value, count in self._counts.items():
            _log.warning(LogEntry(self._message, {self._field: value, "count": count}))
        self._counts.clear()

    def _log_counts(self) -> None:
        any_new = bool(self._counts)
        self.flush()
        if any_new:
            self._timer = asyncio.get_running_loop().call_later(_EVERY, self._log_counts)
