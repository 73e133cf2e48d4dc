"""What is kept of turns, as one of the places that hold a person's words."""

from collections.abc import Mapping, Sequence
from typing import Any

from proxy.memory.owner import Owner
from proxy.memory.store import Key
from proxy.traces.trace import exported
from proxy.traces.traces import Traces


class KeptTurns:
    """What the ring holds of persons, as a place that holds their words."""

    def __init__(self, traces: Traces) -> None:
        self._traces = traces

    async def exported(self, person: Owner) -> Mapping[str, Sequence[Any]]:
        """The turns of a person; of a turn of somebody else's, what the person said in it."""
        found = [t for t in self._traces.newest(person.tenant) if t.concerns(person.person)]
        told = [exported(t, person.person, self._traces.person(t) == person.person) for t in reversed(found)]
        return {"kept_turns": told}

    async def forget(self, person: Owner, *, at: float) -> Mapping[str, int]:  # noqa: ARG002 - what comes later is no longer theirs
        """Lets go of all turns in which a person spoke; how many there were."""
        before = sum(1 for _ in self._traces.newest(person.tenant))
        self._traces.forget(person.tenant, user=person.person)
        return {"kept_turns": before - sum(1 for _ in self._traces.newest(person.tenant))}

    async def forget_session(self, key: Key, *, at: float) -> Mapping[str, int]:  # noqa: ARG002 - what comes later is another's
        """Lets go of all turns of a session; how many there were."""
        count = sum(1 for _ in self._traces.newest(key.tenant, key.session))
        self._traces.forget(key.tenant, session=key.session)
        return {"kept_turns": count}

    async def scrub(self) -> None:
        """Nothing was ever in a file."""
