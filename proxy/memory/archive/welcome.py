"""Entries at the archive's door: whose each is, and what is refused."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from proxy.memory.archive.oblivion import buried_at, refuses
from proxy.memory.archive.statements import PERSON, SESSION, STRANGERS
from proxy.memory.archive.steps import Steps
from proxy.memory.session import Entry, Session
from proxy.memory.speakers import NOBODY, guests
from proxy.memory.stores.store import Key


class Share(NamedTuple):
    """An entry, and whose it is to find, where that is another than the session's person."""

    entry: Entry
    guest: str | None


def welcome(key: Key, session: Session, entries: Sequence[Entry]) -> Steps[list[Share | None]]:
    """The entries with ``None`` for those of a forgotten person or session; each turn is whole."""
    names = {entry.speaker for entry in entries if entry.speaker} | (
        {session.user} if session.user else set()
    )
    buried = {}
    for name in sorted(names):
        buried[name] = yield from buried_at(key.tenant, PERSON, name)
    whole = yield from buried_at(key.tenant, SESSION, key.session)
    if session.user:
        owners = buried[session.user]
    else:
        owners = yield from buried_at(key.tenant, STRANGERS, key.session)
    parts = map(Share, entries, guests(session, entries))
    return [_welcomed(part, buried, whole, owners) for part in parts]


def _welcomed(part: Share, buried: Mapping[str, float], *forgotten: float) -> Share | None:
    """What was answered to a forgotten person stays in the session of another, and is found by nobody."""
    entry, guest = part
    if _is_refused(entry, buried.get(entry.speaker or "", 0.0), *forgotten):
        return None
    return part._replace(guest=NOBODY) if guest and _is_refused(entry, buried.get(guest, 0.0)) else part


def _is_refused(entry: Entry, *forgotten: float) -> bool:
    said = min(entry.recorded_at, entry.at)
    return any(refuses(at, said=said, recorded=entry.recorded_at) for at in forgotten if at)
