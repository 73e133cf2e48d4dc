"""Who makes the segment that a plan asks for: a model, or rules."""

import time
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from proxy.memory.session.entry import Entry
from proxy.memory.session.segment import Segment
from proxy.memory.session.session import Session
from proxy.memory.session.speaker import named
from proxy.memory.summaries.compaction import digested, segment
from proxy.memory.summaries.plan import Plan

_TAKEN_BACK: Final = "(All of it was taken back.)"


class WrittenNotes(NamedTuple):
    """What a model wrote, and which one."""

    text: str
    model: str


class SummaryWriter(Protocol):
    """Whoever writes summaries. Both raise Unmade."""

    async def notes(
        self, said: Sequence[Entry], earlier: Sequence[str], *, last: str | None, fallback: str = ""
    ) -> WrittenNotes:
        """Notes on what was said; ``earlier`` are those on what was said before it."""
        ...

    async def merged(self, notes: Sequence[str], *, last: str | None) -> WrittenNotes:
        """One text in the place of several."""
        ...


class Author(NamedTuple):
    """A writer, and which model it falls back to, if not to its own; without a writer, rules make digests."""

    writer: SummaryWriter | None = None
    fallback: str = ""

    async def made(self, session: Session, plan: Plan, entries: Sequence[Entry]) -> Segment:
        """What stands for those ``entries`` that a plan covers, or for several segments. Raises Unmade."""
        told = [entry for entry in entries if plan.covers(entry)]
        if self.writer is None or not plan.merge:
            return await self.noted(session, plan, told)
        former = [one.text for one in session.summaries[plan.first : plan.last]]
        notes = await self.writer.merged(former, last=session.model)
        return segment(session, plan, told, notes.text, now=time.time(), model=notes.model)

    async def noted(self, session: Session, plan: Plan, told: Sequence[Entry]) -> Segment:
        """What stands for what was told. Raises Unmade."""
        now = time.time()
        if self.writer is None:
            return digested(session, plan, told, now=now)
        if not told:
            return segment(session, plan, told, _TAKEN_BACK, now=now)
        said, earlier = named(session, told), [one.text for one in session.summaries[: plan.first]]
        notes = await self.writer.notes(said, earlier, last=session.model, fallback=self.fallback)
        return segment(session, plan, told, notes.text, now=now, model=notes.model)


DIGESTS: Final = Author()
"""Whoever makes no use of a model."""
