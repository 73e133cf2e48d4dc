"""Warnings about a whole configuration: values that are valid, but probably mistakes.

Steps of a pipeline may defeat one another, do nothing, or disagree.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from filters.base import Filter, RequestFilter
from filters.inject_episodes import InjectEpisodes
from filters.inject_facts import InjectFacts
from filters.inject_last_call import InjectLastCall
from filters.inject_summaries import InjectSummaries
from filters.recall import Recall
from filters.repair_history import RepairHistory
from filters.restore_history import RestoreHistory
from filters.restore_interrupted import RestoreInterrupted
from proxy.admission.gate import is_loopback_name
from proxy.errors import filter_name
from proxy.settings.document import KeyPath
from proxy.settings.memory import MemorySettings, RecallSettings
from proxy.settings.pipeline import PipelineSettings
from proxy.settings.settings import Settings, unshared_limits
from proxy.settings.values import PRACTICE
from proxy.upstream.providers import provider_at

Warnings = Iterator[tuple[KeyPath, str]]
"""Paths of values that are probably mistakes, and what to write instead; in no order."""


def settings_warnings(settings: Settings) -> Warnings:
    """All warnings about a configuration."""
    memory = settings.memory
    yield from _upstream_warnings(settings)
    if not is_loopback_name(settings.listen.host):
        short = sorted({key.tenant for key in settings.keys.entries if key.is_short})
        if short:
            names = ", ".join(short)
            message = f"short secrets can be guessed ({names}); make longer ones with: openssl rand -hex 32"
            yield ("keys",), message
    if warning := unshared_limits(settings):
        yield ("limits",), warning
    if memory:
        yield from _memory_warnings(settings, memory)
    for name, pipeline in settings.pipelines.items():
        for path, message in _pipeline_warnings(pipeline, memory):
            yield ("pipelines", name, *path), message


# --- upstreams

_BRACELESS: Final = re.compile(r"\$[A-Z][A-Z0-9_]+")
_AZURE: Final = ".openai.azure.com"


def _upstream_warnings(settings: Settings) -> Warnings:
    chatting = {name for pipeline in settings.pipelines.values() for name in pipeline.upstreams}
    aids = set[str]()
    if memory := settings.memory:
        chatting |= {each.upstream for each in (memory.summaries, memory.facts) if each}
        aids = {each.upstream for each in (memory.recall.embeddings, memory.recall.rerank) if each}
    for name, upstream in settings.upstreams.items():
        at = "upstreams", name
        address, key = urlsplit(upstream.base_url), upstream.api_key.get_secret_value()
        is_practice = upstream.base_url == PRACTICE
        is_remote = not is_practice and not is_loopback_name(address.netloc)
        in_headers = any(word in header for word in ("auth", "key", "token") for header in upstream.headers)
        has_key = bool(key) or upstream.forward_key or in_headers
        if is_remote and not has_key:
            message = "no key is sent to an upstream on another machine; set api_key, or forward_key"
            yield (*at, "api_key"), message
        if is_remote and has_key and address.scheme == "http":
            yield (*at, "base_url"), "a key is sent to another machine without encryption; write https"
        if _BRACELESS.fullmatch(key):
            yield (*at, "api_key"), "without braces this is text, not a variable; write ${NAME}"
        if upstream.first_token >= upstream.total:
            message = "'total' ends a request before this does; make it shorter than 'total'"
            yield (*at, "first_token"), message
        host = (address.hostname or "").lower()
        kind = provider_at(host, address.port)
        if kind and upstream.accepts == "openai":
            message = (
                f"this vendor does not accept all of OpenAI's fields; write {kind} (UPSTREAM_ACCEPTS={kind})"
            )
            yield (*at, "accepts"), message
        if host.endswith(_AZURE) and address.path not in {"", "/", "/openai/v1"}:
            message = (
                "Azure has OpenAI's chat completions under /openai/v1 only; other addresses need a"
                " query. End the address with /openai/v1, and name the deployment as the model"
            )
            yield (*at, "base_url"), message
        # Providers have chat completions below a path; embeddings may be at the root of a host.
        if name in chatting and not is_practice and not address.path:
            message = "this address has no path, and most models are under /v1; write the vendor's address"
            yield (*at, "base_url"), message
        if name not in chatting and name not in aids:
            yield at, "no pipeline uses this upstream; name it in one, or take it out"


# --- memory

NEEDS_MEMORY: Final = (RestoreHistory, InjectSummaries, InjectEpisodes, InjectLastCall)
NEEDS_FACTS: Final = (InjectFacts,)
NEEDS_ARCHIVE: Final = (Recall,)

_NO_MEMORY: Final = "without memory this has no effect; set 'memory:', or take this out"
_NO_FACTS: Final = (
    "with the archive switched off, no facts are stored; write 'keep: forever', or take this out"
)
_NO_ARCHIVE: Final = (
    "without an archive this has no effect; set memory.archive.url (ARCHIVE_URL), or take this out"
)


def _memory_warnings(settings: Settings, memory: MemorySettings) -> Warnings:
    steps = {type(step) for pipeline in settings.pipelines.values() for step in pipeline.request}
    for name, task, kind in (
        ("summaries", memory.summaries, InjectSummaries),
        ("facts", memory.facts, InjectFacts),
    ):
        if task and not any(issubclass(step, kind) for step in steps):
            message = f"no pipeline sends {name} to a model; add inject_{name} to one, or take this out"
            yield ("memory", name), message
    if 3 * memory.window.messages_after_cut > 2 * memory.window.max_messages:
        message = "a summary is then made every few turns; write at most two thirds of 'max_messages'"
        yield ("memory", "window", "keep_messages"), message
    if not memory.work and memory.sessions.get_secret_value() == "memory:":
        message = "a worker cannot read sessions in the server's own process (memory:); take this out"
        yield ("memory", "work"), message
    if memory.facts and not memory.keeps_facts:
        yield ("memory", "facts"), _NO_FACTS
    if memory.recall != RecallSettings() and not memory.archive_url:
        yield ("memory", "recall"), _NO_ARCHIVE


# --- pipelines


def _pipeline_warnings(pipeline: PipelineSettings, memory: MemorySettings | None) -> Warnings:
    if memory is None:
        yield from _idle(pipeline, (*NEEDS_MEMORY, *NEEDS_FACTS, *NEEDS_ARCHIVE), _NO_MEMORY, tools=True)
    else:
        if not memory.archive_url:
            yield from _idle(pipeline, NEEDS_ARCHIVE, _NO_ARCHIVE)
        if not memory.keeps_facts:
            yield from _idle(pipeline, NEEDS_FACTS, _NO_FACTS, tools=True)
    for i, name in enumerate(pipeline.upstreams):
        if name in pipeline.upstreams[:i] and not pipeline.hedge:
            yield (
                ("upstreams", i),
                "this upstream is listed twice, and would fail the second time as well; keep one",
            )
    if pipeline.hedge and len(pipeline.upstreams) == 1:
        yield ("hedge",), "there is no second upstream; add one, or this one once more"
    for key, steps in (("request", pipeline.request), ("answer", pipeline.answer)):
        for i in duplicates(steps):
            yield (key, i), "duplicate step with the same options; keep one"
    for i, message in order_warnings(pipeline.request, summarising=bool(memory and memory.summaries)):
        yield ("request", i), message
    for i, message in agreement_warnings(pipeline.request):
        yield ("request", i), message
    for i, test in enumerate(pipeline.tests):
        if test.is_vacuous:
            yield ("tests", i), "this case can never fail; add what must hold, such as 'expect'"


def _idle(
    pipeline: PipelineSettings, kinds: tuple[type[RequestFilter], ...], message: str, *, tools: bool = False
) -> Warnings:
    """Yields ``message`` for steps of these kinds, and for ``tools``, which do nothing without memory."""
    if tools and pipeline.tools:
        yield ("tools",), message
    for i, step in enumerate(pipeline.request):
        if isinstance(step, kinds):
            yield ("request", i), message


class Order(msgspec.Struct, frozen=True):
    """A filter that must precede another one, and why; ``when`` limits it to some options of ``then``.

    Filters are named as in YAML.
    """

    first: str
    then: str
    why: str
    when: Callable[[Any], bool] = lambda _: True


def _touches_answers(step: Any) -> bool:
    return "assistant" in getattr(step, "roles", ())


_CONTROL = "it does not recognise control words and repeated answers after a prefix"
_SPOKEN = "it does not find words after a prefix in 'original', and marks the whole answer as unheard"
_LAST_MARK = "a merged message has only the marks of its first part, and those of the others are lost"
_BUDGET = "the count does not include what it adds or removes, so the budget can be exceeded"
_BEFORE_WORDS = "the prefix would stand before the added text, and not before the user's words"
_BARE = "the text that it adds would not be redacted"

ORDERS: Final = (
    Order("repair_history", "timestamp_prefix", _CONTROL),
    Order("repair_history", "user_context", _CONTROL),
    Order(
        "repair_history",
        "restore_interrupted",
        "an unheard answer gets words, and is no longer recognised as empty",
        lambda step: getattr(step, "show", None) != "heard",
    ),
    Order(
        "repair_history",
        "merge_consecutive",
        "an answer that was sent twice is merged before it can be recognised as repeated",
    ),
    Order("restore_interrupted", "timestamp_prefix", _SPOKEN, _touches_answers),
    Order("restore_interrupted", "user_context", _SPOKEN, _touches_answers),
    Order("restore_interrupted", "merge_consecutive", _LAST_MARK),
    Order("drop_messages", "merge_consecutive", _LAST_MARK),
    Order("timestamp_prefix", "merge_consecutive", _LAST_MARK),
    Order("user_context", "merge_consecutive", _LAST_MARK),
    Order(
        "restore_interrupted",
        "rewrite",
        "it does not find rewritten words in 'original'",
        _touches_answers,
    ),
    *(
        Order(name, "trim_history", _BUDGET)
        for name in (
            *("repair_history", "drop_messages", "restore_interrupted", "timestamp_prefix", "user_context"),
            *("merge_consecutive", "restore_history", "inject_summaries", "inject_facts"),
            *("inject_last_call", "inject_episodes", "recall", "rewrite", "system_prompt"),
        )
    ),
    *(
        Order(name, "redact", _BARE)
        for name in (
            *("user_context", "restore_interrupted", "restore_history", "inject_summaries"),
            *("inject_facts", "inject_last_call", "inject_episodes", "recall"),
        )
    ),
    Order("repair_history", "restore_history", "turns are told apart by their words, which it repairs"),
    Order("restore_history", "inject_summaries", "a restored turn would stand beside its summary"),
    Order("restore_history", "drop_messages", "restored messages would not be dropped"),
    Order("restore_history", "restore_interrupted", "a restored answer would not be marked as interrupted"),
    Order("restore_history", "timestamp_prefix", "restored messages would have no prefix"),
    Order("restore_history", "user_context", "restored messages would have no prefix"),
    Order("restore_history", "merge_consecutive", "turns are told apart before they are merged"),
    Order("inject_summaries", "merge_consecutive", "turns are told apart before they are merged"),
    *(
        Order(prefix, name, _BEFORE_WORDS)
        for name in ("inject_episodes", "recall", "inject_facts")
        for prefix in ("timestamp_prefix", "user_context")
    ),
    Order("inject_facts", "recall", "otherwise it repeats facts that inject_facts has added"),
    Order(
        "system_prompt",
        "inject_facts",
        "otherwise it repeats what the new prompt says, and omits what only the replaced prompt says",
    ),
    Order(
        "system_prompt",
        "inject_last_call",
        "otherwise it repeats what the new prompt says, and omits what only the replaced prompt says",
    ),
    Order("restore_history", "inject_last_call", "turns are told apart by their words"),
    Order(
        "restore_history", "inject_facts", "turns are told apart by their words, before which it adds text"
    ),
)

_UNCOVERED: Final = "otherwise turns with a summary come back word for word"
_CLOSED: Final = "otherwise a tool call without a result comes back in another form"


def duplicates(steps: Sequence[Filter]) -> Sequence[int]:
    """Returns the positions of steps that repeat an earlier step with the same options."""
    return [i for i, step in enumerate(steps) if step in steps[:i]]


def order_warnings(steps: Sequence[Filter], *, summarising: bool = True) -> Iterator[tuple[int, str]]:
    """Yields the positions of ``request`` steps that are misplaced, lack another step or do nothing.

    With each comes what to write instead. ``summarising`` is whether there are summaries to be injected.
    """
    # For a filter with several steps, the position of the first counts.
    places = {filter_name(step): i for i, step in reversed(list(enumerate(steps)))}
    for rule in ORDERS:
        first, then = places.get(rule.first), places.get(rule.then)
        if first is not None and then is not None and then < first and rule.when(steps[then]):
            yield then, f"put this after {rule.first}: {rule.why}"
    if summarising and "restore_history" in places and "inject_summaries" not in places:
        yield places["restore_history"], f"add inject_summaries: {_UNCOVERED}"

    # Steps that do nothing.
    dropped: dict[str, set[str]] = {"sources": set(), "roles": set()}
    repeated = duplicates(steps)
    for i, step in enumerate(steps):
        name = filter_name(step)
        if isinstance(step, RestoreInterrupted) and step.show == "heard":
            yield i, "with 'show: heard' this changes nothing; take it out, or write 'show: both'"
        conditions = {option: set(getattr(step, option, ())) for option in dropped}
        # The user's newest message is never dropped, so steps other than dropping still find it.
        finds_newest = name != "drop_messages" and "user" in getattr(step, "roles", ("user",))
        is_idle = any(names and names <= dropped[option] for option, names in conditions.items())
        if is_idle and not finds_newest and i not in repeated:
            yield (
                i,
                "an earlier step drops every message that this works on; take this out, or put it before",
            )
        options = [option for option, names in conditions.items() if names]
        # With two conditions, a step does not drop all that either one names.
        if name == "drop_messages" and len(options) == 1:
            dropped[options[0]] |= conditions[options[0]]


def agreement_warnings(steps: Sequence[Filter]) -> Iterator[tuple[int, str]]:
    """Yields steps of ``restore_history`` with other options for tool calls than ``repair_history``."""
    repair = next((step for step in steps if isinstance(step, RepairHistory)), None)
    if repair is None or not repair.tools:
        return
    for i, step in enumerate(steps):
        if not isinstance(step, RestoreHistory):
            continue
        if step.unanswered != repair.unanswered:
            yield i, f"give this the same 'unanswered' as repair_history: {_CLOSED}"
        elif repair.unanswered == "stub" and step.stub != repair.stub:
            yield i, f"give this the same 'stub' as repair_history: {_CLOSED}"
