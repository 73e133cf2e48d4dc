"""One line in the log for each turn, written when the turn has ended."""

import logging
from collections.abc import Mapping
from typing import Any

from proxy.telemetry.account import Account
from proxy.telemetry.log import LogEntry

_MOST_NAMED = 10
_LONGEST = 300
_log = logging.getLogger("turnkeeper.turns")


def told(account: Account, reason: str | None, words: Mapping[str, str]) -> None:
    """Writes an account down: ids, times and counts, why it failed, if it did, and ``words`` where wanted."""
    failed = account.state == "failed"
    level = logging.WARNING if failed else logging.INFO
    if _log.isEnabledFor(level):
        why = {"reason": reason[:_LONGEST]} if failed and reason else {}
        _log.log(level, LogEntry(f"turn {account.state}", {**fields_of(account), **why, **words}))


def fields_of(account: Account) -> dict[str, Any]:
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
