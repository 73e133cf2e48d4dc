"""What is remembered, where, and for how long."""

from typing import Annotated

from pydantic import AfterValidator, Field, SecretStr, ValidationInfo

from filters import quantity
from filters.number import Whole
from proxy.configuration.advice import advising
from proxy.configuration.part import Part
from proxy.configuration.settings.facts import Facts
from proxy.configuration.settings.recall import RecallAids
from proxy.configuration.settings.redaction import Redaction
from proxy.configuration.settings.summaries import Summaries
from proxy.configuration.value import Duration, Retention, archive_address, encryption_keys, store_address
from proxy.memory.archive.open import is_archive


def _fewer(given: int | None, info: ValidationInfo) -> int | None:
    """What is kept, where that leaves something to cut."""
    if given is not None and given >= info.data.get("max_messages", given + 1):
        raise ValueError("keep fewer than 'max_messages', best a third; left out, it is a third")
    return given


class Window(Part):
    """How much of a session is held ready, and for how long."""

    max_messages: Annotated[Whole, Field(ge=2, le=1000)] = 60
    """A session with more messages than this is cut down, by whole turns."""
    keep_messages: Annotated[
        Annotated[Whole, Field(ge=1, le=1000)] | None, AfterValidator(advising(_fewer))
    ] = None
    """How many messages are left then, at the least; left out, a third of ``max_messages``."""
    max_tokens: Annotated[Whole, Field(ge=100)] | None = None
    """A session whose turns not yet summarised have more tokens is cut down, too; only with ``summaries``."""
    ttl: Duration = 1800.0
    """How long a session is kept after its last turn."""

    @property
    def kept(self) -> int:
        """How many messages are left, at the least."""
        return self.keep_messages or max(1, self.max_messages // 3)


class Archive(Part):
    """Where every turn is kept as it was heard, beyond its session."""

    url: Annotated[SecretStr, AfterValidator(advising(archive_address))] = SecretStr("")
    """``sqlite:PATH`` or ``postgresql://…``; empty: where sessions are, if that is such a place."""
    keep: Retention = "forever"
    """For how long: ``forever``, a duration such as ``90d``, or ``off``."""

    @property
    def seconds(self) -> float:
        """For how long turns are kept, in seconds; 0 is for ever."""
        return 0.0 if self.keep in {"forever", "off"} else quantity.seconds(self.keep)


class Memory(Part):
    """What is remembered of conversations; left out, nothing is."""

    sessions: Annotated[SecretStr, AfterValidator(advising(store_address))]
    """Where sessions are kept: ``sqlite:PATH``, ``postgresql://…``, ``redis://…``, or ``memory:``."""
    encryption: Annotated[tuple[SecretStr, ...], AfterValidator(advising(encryption_keys))] = ()
    """Keys of 32 bytes in URL-safe base64: the first encrypts, all decrypt; empty ones do not count."""
    redact: Redaction | None = None
    """What is never stored, but for a mark in its place; left out, words are stored as they were said."""
    deadline: Duration = 0.05
    """What a slow or dead memory may cost a call."""
    window: Window = Window()
    """How much of a session is held ready."""
    summaries: Summaries | None = None
    """What becomes of turns that are held ready no longer; left out, they are kept and no model sees them."""
    facts: Facts | None = None
    """Who finds facts in what callers say; left out, nobody does. They are kept in the archive."""
    work: bool = True
    """Whether ``serve`` does what can wait itself; ``false`` leaves it to ``turnkeeper worker``."""
    archive: Archive = Archive()
    """Where every turn is kept as it was heard, beyond its session."""
    recall: RecallAids = RecallAids()
    """Models that help recall; without them it goes by words alone."""
    reasoning: bool = False
    """Whether a model's reasoning is kept beside its answer, for upstreams that take it back."""

    @property
    def archive_url(self) -> str:
        """Where the archive is: empty where there is none."""
        if self.archive.keep == "off":
            return ""
        sessions = self.sessions.get_secret_value()
        return self.archive.url.get_secret_value() or (sessions if is_archive(sessions) else "")
