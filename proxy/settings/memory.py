"""The settings of memory: what is remembered, where, and for how long."""

from collections.abc import Mapping
from functools import cached_property
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, get_args

from pydantic import Field, SecretStr, ValidationInfo, model_validator

from filters import option_types
from filters.option_types import Whole, template_with
from filters.text.pattern import OwnPattern
from filters.text.personal import Kind
from proxy.memory.archive.archive import is_archive
from proxy.memory.user_values import LASTING
from proxy.settings.diagnostics import check_with
from proxy.settings.values import (
    Duration,
    Retention,
    SettingsModel,
    UpstreamName,
    archive_address,
    encryption_keys,
    store_address,
)

if TYPE_CHECKING:
    from filters.redact import Redact

FactStore = Literal["archive", "mem0"]
FieldName = Annotated[str, Field(pattern="^[a-z][a-z0-9_]{0,31}$")]
Description = Annotated[str, Field(min_length=1, max_length=300)]


class Redaction(SettingsModel):
    """What never reaches a store; the filter ``redact`` has the same names for it."""

    kinds: tuple[Kind, ...] = get_args(Kind)
    """What is looked for; left out, all of these."""
    patterns: Mapping[str, OwnPattern] = Field(default_factory=dict)
    """Further kinds by name, as patterns of RE2: ``{order: "ORD-[0-9]+"}``."""
    max_length: Annotated[Whole, Field(ge=1, le=1024)] = 64
    """How many characters a match of ``patterns`` may have."""
    template: Annotated[str, template_with("kind")] = "[{kind}]"
    """What stands in its place: ``{kind}`` is filled in."""

    @model_validator(mode="after")
    def _does_something(self) -> Self:
        marking = self.marking
        found = next((mark for mark in marking.marks.values() if marking.text(mark) != mark), None)
        if found is not None:
            raise ValueError(f"the mark '{found}' would be found itself; choose another 'template' or name")
        return self

    @cached_property
    def marking(self) -> "Redact":
        """The filter that finds and marks this data."""
        from filters.redact import Redact  # noqa: PLC0415 - only needed for redaction

        return Redact(
            kinds=self.kinds, patterns=self.patterns, max_length=self.max_length, template=self.template
        )


class Summaries(SettingsModel):
    """How the oldest turns of a session are summarised."""

    upstream: UpstreamName
    """The upstream that writes them; with ``practice:`` they consist of the turns' own sentences."""
    model: str = ""
    """The model's name; empty takes what the session last used."""
    fallback: str = ""
    """The model that is tried when the first one fails; empty tries none."""
    max: Annotated[Whole, Field(ge=1, le=100)] = 10
    """How many summaries a session has at the most; beyond it the oldest are merged, never dropped."""
    input_tokens: Annotated[Whole, Field(ge=500)] = 6000
    """How much the model is given at once; what is longer is summarised in several pieces."""
    timeout: Duration = 60.0
    """How long one answer may take."""


def _installed(store: FactStore) -> FactStore:
    if store == "mem0" and find_spec("mem0") is None:
        raise ValueError("Mem0 is not installed; install turnkeeper[mem0]")
    return store


class Facts(SettingsModel):
    """How facts about users are extracted from what they say, and how many are kept."""

    upstream: UpstreamName
    """The upstream that extracts them; with ``practice:`` none are."""
    model: str = ""
    """The model's name; empty takes what the session last used."""
    fallback: str = ""
    """The model that is tried when the first one fails; empty tries none."""
    max: Annotated[Whole, Field(ge=1, le=1000)] = 100
    """How many facts are kept of a user at the most; beyond it the least important go."""
    store: Annotated[FactStore, check_with(_installed)] = "archive"
    """Where facts are kept: in the archive, else beside the sessions, or in Mem0, with its library."""
    mem0: dict[str, Any] = Field(default_factory=dict)
    """Mem0's own options, as its ``Memory.from_config`` takes them."""
    instructions: str = ""
    """What else the model is to note, or to leave out, in your own words."""
    fields: Mapping[FieldName, Description] = Field(default_factory=dict)
    """What is to be known of each user: a description by name. A user has one fact for each of these."""
    pause: Duration = 60.0
    """How long a call is silent before its turns are searched for facts: at most half of ``window.ttl``."""
    timeout: Duration = 60.0
    """How long one answer may take."""


class Embeddings(SettingsModel):
    """A model that finds what means the same in other words; it is sent all that is archived."""

    upstream: UpstreamName
    """The upstream, with ``/embeddings``; with ``practice:`` none is used."""
    model: str = ""
    """The model's name; empty takes the upstream's, else ``default``. Under a new one all is sent again."""
    weight: Annotated[float, Field(ge=0, le=1)] = 1.0
    """What the same meaning counts, beside 1 for all the same words."""
    least: Annotated[float, Field(ge=0, lt=1)] = 0.25
    """How alike (a cosine) a meaning must be to count at all."""
    timeout: Duration = 10.0
    """How long one answer may take in the background."""


class Rerank(SettingsModel):
    """A model that puts what was found in order."""

    upstream: UpstreamName
    """The upstream, with ``/rerank``; with ``practice:`` none is used."""
    model: str = ""
    """The model's name; empty takes the upstream's, else ``default``."""
    top: Annotated[Whole, Field(ge=2, le=100)] = 30
    """How many of the best are put in order."""


class RecallAids(SettingsModel):
    """Models that help recall, as far as they answer within its deadline; left out, words alone count."""

    embeddings: Embeddings | None = None
    """A model that finds what means the same in other words."""
    rerank: Rerank | None = None
    """A model that puts what was found in order."""


def _below_maximum(keep: int | None, info: ValidationInfo) -> int | None:
    if keep is not None and keep >= info.data.get("max_messages", keep + 1):
        raise ValueError("keep fewer than 'max_messages', best a third; left out, it is a third")
    return keep


class Window(SettingsModel):
    """How much of a session each call reads, and for how long it is stored."""

    max_messages: Annotated[Whole, Field(ge=2, le=1000)] = 60
    """A session with more messages than this is cut down, by whole turns."""
    keep_messages: Annotated[Annotated[Whole, Field(ge=1, le=1000)] | None, check_with(_below_maximum)] = None
    """How many messages are left then, at the least; left out, a third of ``max_messages``."""
    max_tokens: Annotated[Whole, Field(ge=100)] | None = None
    """A session whose turns not yet summarised have more tokens is cut down, too; only with ``summaries``."""
    ttl: Duration = 1800.0
    """How long a session is kept after its last turn."""

    @property
    def messages_after_cut(self) -> int:
        """The number of messages that a session is cut down to, at the least."""
        return self.keep_messages or max(1, self.max_messages // 3)


class Archive(SettingsModel):
    """Where every turn is kept as it was heard, beyond its session."""

    url: Annotated[SecretStr, check_with(archive_address)] = SecretStr("")
    """``sqlite:PATH`` or ``postgresql://…``; empty: where sessions are, if that is such a place."""
    keep: Retention = "forever"
    """For how long: ``forever``, a duration such as ``90d``, or ``off``."""

    @property
    def seconds(self) -> float:
        """How long turns are kept, in seconds; 0 for ``forever`` and ``off``."""
        return 0.0 if self.keep in {"forever", "off"} else option_types.seconds(self.keep)


class Memory(SettingsModel):
    """What is remembered of conversations; left out, nothing is."""

    sessions: Annotated[SecretStr, check_with(store_address)]
    """Where sessions are kept: ``sqlite:PATH``, ``postgresql://…``, ``redis://…``, or ``memory:``."""
    encryption: Annotated[tuple[SecretStr, ...], check_with(encryption_keys)] = ()
    """Keys of 32 bytes in URL-safe base64: the first encrypts, all decrypt; empty ones do not count."""
    redact: Redaction | None = None
    """What is never stored, but for a mark in its place; left out, words are stored as they were said."""
    deadline: Duration = 0.05
    """What a slow or dead memory may cost a call."""
    window: Window = Window()
    """How much of a session each call reads, and for how long it is stored."""
    summaries: Summaries | None = None
    """What becomes of turns beyond the window; left out, they are stored and no model sees them."""
    facts: Facts | None = None
    """How facts are extracted from what callers say; left out, none are."""
    call_pause: Duration = 60.0
    """How long a call is silent before it counts as over, and notes on it are written for the next one."""
    work: bool = True
    """Whether ``serve`` does what can wait itself; ``false`` leaves it to ``turnkeeper worker``."""
    archive: Archive = Archive()
    """Where every turn is kept as it was heard, beyond its session."""
    recall: RecallAids = RecallAids()
    """Models that help recall; without them it goes by words alone."""
    reasoning: bool = False
    """Whether a model's reasoning is kept beside its answer, for upstreams that take it back."""

    @property
    def facts_pause(self) -> float:
        """The seconds of silence before facts are extracted; at most half of the session's lifetime."""
        return min(self.facts.pause, self.window.ttl / 2) if self.facts else 0.0

    @property
    def silence(self) -> float:
        """The seconds of silence after which a call is over; at most half of its session's lifetime."""
        return min(self.call_pause, self.window.ttl / 2)

    @property
    def keeps_facts(self) -> bool:
        """Whether facts are kept; with the archive switched off, only Mem0 keeps them."""
        return self.archive.keep != "off" or (self.facts is not None and self.facts.store == "mem0")

    @property
    def calls_kept(self) -> float:
        """How many seconds past calls are kept: as long as turns, or as sessions with the archive off."""
        return self.window.ttl if self.archive.keep == "off" else self.archive.seconds or LASTING

    @property
    def lacks_archive(self) -> str:
        """A message for sessions that are not in SQL and have no archive; empty if it is switched off."""
        if self.archive_url or self.archive.keep == "off":
            return ""
        return (
            "no archive: sessions are not kept in SQL; set ARCHIVE_URL to have turns outlive them, and for"
            " recall, search and documents. Facts and notes on the last calls are kept beside the sessions"
        )

    @property
    def encryption_keys(self) -> list[str]:
        """The keys in plain text."""
        return [key.get_secret_value() for key in self.encryption]

    @property
    def archive_url(self) -> str:
        """The address of the archive; empty if there is none."""
        if self.archive.keep == "off":
            return ""
        sessions = self.sessions.get_secret_value()
        return self.archive.url.get_secret_value() or (sessions if is_archive(sessions) else "")
