"""What is kept of turns to be looked at, as a place that holds words of persons."""

from collections.abc import Mapping, Sequence
from typing import Any

from proxy.memory.archive.lexicon import Scope
from proxy.memory.store import Key
from proxy.trace import Trace
from proxy.traces import Traces
from proxy.transcript import transcript


class KeptTurns:
    """What the ring holds of persons, as a place that holds their words."""

    def __init__(self, traces: Traces) -> None:
        self._traces = traces

    async def exported(self, person: Scope) -> Mapping[str, Sequence[Any]]:
        """The turns of a person; of a turn of somebody else's, what the person said in it."""
        found = [t for t in self._traces.newest(person.tenant) if t.concerns(person.person)]
        told = [_exported(t, person.person, self._traces.person(t) == person.person) for t in reversed(found)]
        return {"kept_turns": told}

    async def forget(self, person: Scope, *, at: float) -> int:  # noqa: ARG002 - what comes later is no longer theirs
        """Lets go of all turns in which a person spoke; how many there were."""
        before = sum(1 for _ in self._traces.newest(person.tenant))
        self._traces.forget(person.tenant, user=person.person)
        return before - sum(1 for _ in self._traces.newest(person.tenant))

    async def forget_session(self, key: Key, *, at: float) -> int:  # noqa: ARG002 - what comes later is another's
        """Lets go of all turns of a session; how many there were."""
        count = sum(1 for _ in self._traces.newest(key.tenant, key.session))
        self._traces.forget(key.tenant, session=key.session)
        return count

    async def scrub(self) -> None:
        """Nothing was ever in a file."""


def _exported(trace: Trace, person: str, is_theirs: bool) -> dict[str, Any]:  # noqa: FBT001 - whose session it is
    account = trace.account
    said = [
        {"role": m.role, "content": m.text} for m in (trace.messages if is_theirs else trace.said_by(person))
    ]
    return {
        "id": account.id,
        "timestamp": account.at,
        "session_id": account.session,
        "messages": said,
        "answer": transcript(trace.answer).text if is_theirs else "",
    }
