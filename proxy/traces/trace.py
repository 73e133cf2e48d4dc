"""One turn as it went, kept to be looked at: values that were there anyway, and nothing made of them yet."""

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

import msgspec

from filters.base import Context, Fields, Messages
from proxy.answer.transcript import transcript
from proxy.identity import Identity
from proxy.memory.archive.archive import Buried
from proxy.pipeline import Pipeline
from proxy.telemetry.account import Account
from proxy.telemetry.watch import Watch
from proxy.wire import Call

_PRIVATE = frozenset({"authorization", "proxy-authorization", "api-key", "x-api-key", "cookie"})
_MOST_STAMPS = 200


class Content(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What was said in a turn: the call as the engine sent it, and with its interrupted answers marked.

    ``fields`` and ``messages`` are what the filters made of it.
    """

    call: Call
    heard: Call
    who: Identity
    context: Context
    pipeline: Pipeline
    fields: Fields
    messages: Messages


class Trace(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A turn that has ended. ``began``, ``marks``, ``chunks`` and ``end`` are by ``time.perf_counter``.

    ``marks`` say when each stage began, and ``chunks`` when something went to the client, at most 200 times
    of ``count``. ``answer`` is what the client got, ``failure`` why it got no more, and ``size`` about
    how many bytes are kept.
    """

    account: Account
    number: int
    began: float
    marks: Sequence[tuple[str, float]]
    chunks: Sequence[float]
    count: int
    end: float
    failure: str | None = None
    content: Content | None = None
    answer: bytes = b""
    size: int = 0

    @classmethod
    def of(cls, account: Account, watch: Watch, *, number: int, content: bool) -> Self:
        """What there is to keep of a turn that was watched; without ``content``, nothing that was said."""
        said = watch.content if content and isinstance(watch.content, Content) else None
        return cls(
            account=account,
            number=number,
            began=watch.clock.began,
            marks=tuple(watch.clock.marks),
            chunks=watch.stamps[:: len(watch.stamps) // _MOST_STAMPS + 1],
            count=len(watch.stamps),
            end=watch.clock.began + watch.lasted,
            failure=watch.failure,
            content=said and _without_keys(said),
            answer=b"".join(watch.sent) if said else b"",
            size=watch.size + sum(map(len, watch.sent)) if said else 0,
        )

    def concerns(self, person: str) -> bool:
        """Whether somebody called, or said anything that was sent along."""
        return person in self.persons

    @property
    def messages(self) -> Messages:
        """What the client sent, where that is kept."""
        return self.content.call.messages if self.content else ()

    def said_by(self, person: str) -> Messages:
        """What a person said of it: what is marked as theirs, and the newest words, if they called."""
        users = [m for m in self.messages if m.role == "user"]
        newest = users[-1:] if self.account.user == person else []
        return [m for m in users if m.user == person or (m.user is None and any(m is one for one in newest))]

    @property
    def arrived(self) -> float:
        """When it arrived, in seconds since 1970, as the clock counts that now: it may have been set back."""
        return min(self.account.at, time.time() - (time.perf_counter() - self.began))

    def is_buried(self, buried: Buried) -> bool:
        """Whether its session, or one of its persons, was forgotten after it had arrived."""
        return buries(buried, self.persons, self.account.session, self.arrived)

    @property
    def persons(self) -> set[str]:
        """Who called, and whoever said anything that was sent along."""
        return {name for name in (self.account.user, *(m.user for m in self.messages)) if name is not None}


def exported(trace: Trace, person: str, is_theirs: bool) -> dict[str, Any]:  # noqa: FBT001 - whose session it is
    """A turn, of a session of a person's; of somebody else's, what they said in it."""
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


def buries(buried: Buried, persons: Iterable[str | None], session: str | None, arrived: float) -> bool:
    """Whether a turn's session, or one of its persons, was forgotten after it had arrived."""
    times = [buried.persons.get(name or "") for name in persons]
    times.append(buried.sessions.get(session or ""))
    return any(at is not None and arrived <= at for at in times)


def _without_keys(content: Content) -> Content:
    call, heard = content.call, content.heard
    kept: Mapping[str, str] = {name: value for name, value in call.headers.items() if name not in _PRIVATE}
    shown = msgspec.structs.replace(call, headers=kept)
    marked = shown if heard is call else msgspec.structs.replace(heard, headers=kept)
    return msgspec.structs.replace(content, call=shown, heard=marked)
