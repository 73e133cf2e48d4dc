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


class RedactionSettings(SettingsModel):
    """Data that is never stored; the filter ``redact`` has the same options."""

    kinds: tuple[Kind, ...] = get_args(Kind)
    """The kinds of data to look for; left out: all of them."""
    patterns: Mapping[str, OwnPattern] = Field(default_factory=dict)
    """Further kinds by name, as patterns of RE2, such as ``{order: "ORD-[0-9]+"}``."""
    max_length: Annotated[Whole, Field(ge=1, le=1024)] = 64
    """The most characters that a match of ``patterns`` may have."""
    template: Annotated[str, template_with("kind")] = "[{kind}]"
    """The mark that replaces the data; ``{kind}`` is filled in."""

    @model_validator(mode="after")
    def _does_something(self) -> Self:
        marking = self.marking
        unsafe = next((mark for mark in marking.marks.values() if marking.text(mark) != mark), None)
        if unsafe is not None:
            raise ValueError(
                f"the mark '{unsafe}' matches a pattern itself; choose another 'template' or name"
            )
        return self

    @cached_property
    def marking(self) -> "Redact":
        """The filter that finds and marks this data."""
        from filters.redact import Redact  # noqa: PLC0415 - only needed for redaction

        return Redact(
            kinds=self.kinds, patterns=self.patterns, max_length=self.max_length, template=self.template
        )


class SummarySettings(SettingsModel):
    """How the oldest turns of a session are summarised."""

    upstream: UpstreamName
    """The upstream that writes summaries; with ``practice:`` they are made of sentences of the turns."""
    model: str = ""
    """The model; empty: the upstream's, else the one that the session last used."""
    fallback: str = ""
    """The model that is asked when the first one fails; empty: none."""
    max: Annotated[Whole, Field(ge=1, le=100)] = 10
    """The most summaries of a session; above it the oldest are merged, and none is dropped."""
    input_tokens: Annotated[Whole, Field(ge=500)] = 6000
    """The most tokens in one request; longer texts are summarised in several pieces."""
    timeout: Duration = 60.0
    """How long one answer of the model may take."""


def _installed(store: FactStore) -> FactStore:
    if store == "mem0" and find_spec("mem0") is None:
        raise ValueError("Mem0 is not installed; install turnkeeper[mem0]")
    return store


class FactSettings(SettingsModel):
    """How facts about users are extracted from what they say, and how many are stored."""

    upstream: UpstreamName
    """The upstream that extracts facts; with ``practice:`` none are extracted."""
    model: str = ""
    """The model; empty: the upstream's, else the one that the session last used."""
    fallback: str = ""
    """The model that is asked when the first one fails; empty: none."""
    max: Annotated[Whole, Field(ge=1, le=1000)] = 100
    """The most facts of a user; above it the least important are removed."""
    store: Annotated[FactStore, check_with(_installed)] = "archive"
    """Where facts are stored: in the archive (without one, beside the sessions), or in Mem0.

    Mem0 needs ``turnkeeper[mem0]``.
    """
    mem0: dict[str, Any] = Field(default_factory=dict)
    """Options of Mem0, as its ``Memory.from_config`` takes them."""
    instructions: str = ""
    """Further instructions to the model, in your words: what else to note, or to leave out."""
    fields: Mapping[FieldName, Description] = Field(default_factory=dict)
    """What to learn about each user: a description by name. A user has one fact for each name."""
    pause: Duration = 60.0
    """How long a call is silent before facts are extracted from it; at most half of ``window.ttl``."""
    timeout: Duration = 60.0
    """How long one answer of the model may take."""


class EmbeddingSettings(SettingsModel):
    """A model that finds texts of the same meaning in other words; all archived texts are sent to it."""

    upstream: UpstreamName
    """The upstream, which must have ``/embeddings``; with ``practice:`` none is used."""
    model: str = ""
    """The model; empty: the upstream's, else ``default``. After a change all texts are sent again."""
    weight: Annotated[float, Field(ge=0, le=1)] = 1.0
    """How much an equal meaning adds to a score; a text that has all words of the question scores 1."""
    least: Annotated[float, Field(ge=0, lt=1)] = 0.25
    """The least cosine similarity of two meanings that counts."""
    timeout: Duration = 10.0
    """How long one answer may take in the background."""


class RerankSettings(SettingsModel):
    """A model that sorts the results by relevance."""

    upstream: UpstreamName
    """The upstream, which must have ``/rerank``; with ``practice:`` none is used."""
    model: str = ""
    """The model; empty: the upstream's, else ``default``."""
    top: Annotated[Whole, Field(ge=2, le=100)] = 30
    """How many of the best results the model sorts."""


class RecallSettings(SettingsModel):
    """Models that help recall, as far as they answer within its deadline; left out: only words count."""

    embeddings: EmbeddingSettings | None = None
    """A model that finds texts of the same meaning in other words."""
    rerank: RerankSettings | None = None
    """A model that sorts the results by relevance."""


def _below_maximum(keep: int | None, info: ValidationInfo) -> int | None:
    if keep is not None and keep >= info.data.get("max_messages", keep + 1):
        raise ValueError("expected less than 'max_messages', best a third of it, which is the default")
    return keep


class WindowSettings(SettingsModel):
    """How much of a session each turn reads, and how long a session is stored."""

    max_messages: Annotated[Whole, Field(ge=2, le=1000)] = 60
    """The most messages of a session; above it, its oldest turns are cut off."""
    keep_messages: Annotated[Annotated[Whole, Field(ge=1, le=1000)] | None, check_with(_below_maximum)] = None
    """How many messages such a cut leaves at least; by default a third of ``max_messages``."""
    max_tokens: Annotated[Whole, Field(ge=100)] | None = None
    """The most tokens of turns without a summary; above it a session is cut, too. Needs ``summaries``."""
    ttl: Duration = 1800.0
    """How long a session is stored after its last turn."""

    @property
    def messages_after_cut(self) -> int:
        """The least number of messages that are left after a cut."""
        return self.keep_messages or max(1, self.max_messages // 3)


class ArchiveSettings(SettingsModel):
    """Where every turn is stored as the caller heard it, longer than its session."""

    url: Annotated[SecretStr, check_with(archive_address)] = SecretStr("")
    """``sqlite:PATH`` or ``postgresql://…``; empty: the store of the sessions, if it is one of these."""
    keep: Retention = "forever"
    """How long turns are archived: ``forever``, a duration such as ``90d``, or ``off`` for no archive."""

    @property
    def seconds(self) -> float:
        """How long turns are kept, in seconds; 0 for ``forever`` and ``off``."""
        return 0.0 if self.keep in {"forever", "off"} else option_types.seconds(self.keep)


class MemorySettings(SettingsModel):
    """What is remembered of conversations; left out: nothing."""

    sessions: Annotated[SecretStr, check_with(store_address)]
    """Where sessions are stored: ``sqlite:PATH``, ``postgresql://…``, ``redis://…``, or ``memory:``."""
    encryption: Annotated[tuple[SecretStr, ...], check_with(encryption_keys)] = ()
    """Keys of 32 bytes in URL-safe base64: the first encrypts, all decrypt. Empty ones are ignored."""
    redact: RedactionSettings | None = None
    """Data that is never stored: a mark replaces it. Left out: words are stored as they were said."""
    deadline: Duration = 0.05
    """How long a turn waits for memory; after that it continues without."""
    window: WindowSettings = WindowSettings()
    """How much of a session each turn reads, and how long a session is stored."""
    summaries: SummarySettings | None = None
    """How turns beyond the window are summarised; left out: they are stored, and no model sees them."""
    facts: FactSettings | None = None
    """How facts are extracted from what callers say; left out: none are."""
    call_pause: Duration = 60.0
    """How long a call is silent until it counts as ended, and notes for the next call are written.

    At most half of ``window.ttl``.
    """
    work: bool = True
    """Whether ``serve`` runs background jobs itself; ``false``: ``turnkeeper worker`` runs them."""
    archive: ArchiveSettings = ArchiveSettings()
    """Where every turn is stored as the caller heard it, longer than its session."""
    recall: RecallSettings = RecallSettings()
    """Models that help recall; left out: only words count."""
    reasoning: bool = False
    """Whether reasoning is stored with its answer, for upstreams that take it back."""

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
