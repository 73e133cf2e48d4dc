"""Warnings about a whole configuration: what is valid, yet cannot be meant."""

import re
from collections.abc import Iterator
from typing import Final
from urllib.parse import urlsplit

from filters.base import RequestFilter
from filters.inject_episodes import InjectEpisodes
from filters.inject_facts import InjectFacts
from filters.inject_last_call import InjectLastCall
from filters.inject_summaries import InjectSummaries
from filters.recall import Recall
from filters.restore_history import RestoreHistory
from proxy.admission.gate import is_loopback_name
from proxy.settings.document import KeyPath
from proxy.settings.memory import Memory, RecallAids
from proxy.settings.pipeline import Pipeline, Upstream
from proxy.settings.settings import Settings, unshared_limits
from proxy.settings.step_rules import agreement_warnings, duplicates, order_warnings
from proxy.settings.values import PRACTICE
from proxy.upstream.providers import provider_at

Warnings = Iterator[tuple[KeyPath, str]]
"""Where something cannot be meant, and what to write instead; in no order."""


def settings_warnings(settings: Settings) -> Warnings:
    """All warnings about a configuration."""
    memory = settings.memory
    for name, upstream in settings.upstreams.items():
        for path, message in _upstream_warnings(upstream):
            yield ("upstreams", name, *path), message
    if not is_loopback_name(settings.listen.host):
        short = sorted({key.tenant for key in settings.keys.entries if key.is_short})
        if short:
            names = ", ".join(short)
            message = f"short secrets can be guessed ({names}); make longer ones with: openssl rand -hex 32"
            yield ("keys",), message
    yield from _usage_warnings(settings)
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


def _upstream_warnings(upstream: Upstream) -> Warnings:
    address, key = urlsplit(upstream.base_url), upstream.api_key.get_secret_value()
    is_remote = upstream.base_url != PRACTICE and not is_loopback_name(address.netloc)
    in_headers = any("auth" in name or "key" in name or "token" in name for name in upstream.headers)
    has_key = bool(key) or upstream.forward_key or in_headers
    if is_remote and not has_key:
        yield ("api_key",), "no key is sent to an upstream on another machine; set api_key, or forward_key"
    if is_remote and has_key and address.scheme == "http":
        yield ("base_url",), "a key goes to another machine without encryption; write https"
    if _BRACELESS.fullmatch(key):
        yield ("api_key",), "without braces this is text, not a variable; write ${NAME}"
    if upstream.first_token >= upstream.total:
        yield ("first_token",), "'total' ends a request before this does; make it shorter than 'total'"
    host = (address.hostname or "").lower()
    kind = provider_at(host, address.port)
    if kind and upstream.accepts == "openai":
        message = f"this vendor does not take all that OpenAI does; write {kind} (UPSTREAM_ACCEPTS={kind})"
        yield ("accepts",), message
    if host.endswith(_AZURE) and address.path not in {"", "/", "/openai/v1"}:
        message = (
            "Azure has chat completions as OpenAI does under /openai/v1, and nowhere else without a query;"
            " end the address so, and name the deployment as the model"
        )
        yield ("base_url",), message


def _usage_warnings(settings: Settings) -> Warnings:
    memory, recall = settings.memory, settings.memory.recall if settings.memory else RecallAids()
    chatting = {name for pipeline in settings.pipelines.values() for name in pipeline.upstreams}
    chatting |= {each.upstream for each in (memory.summaries, memory.facts) if each} if memory else set()
    for name in chatting:
        # Providers have chat completions below a path; embeddings may be at the root of a host.
        address = settings.upstreams[name].base_url
        if address != PRACTICE and not urlsplit(address).path:
            message = "this address has no path, and most models are under /v1; write it as its vendor does"
            yield ("upstreams", name, "base_url"), message
    aids = {each.upstream for each in (recall.embeddings, recall.rerank) if each}
    for name in settings.upstreams.keys() - chatting - aids:
        yield ("upstreams", name), "no pipeline uses this upstream; name it in one, or take it out"


# --- memory

NEEDS_MEMORY: Final = (RestoreHistory, InjectSummaries, InjectEpisodes, InjectLastCall)
NEEDS_FACTS: Final = (InjectFacts,)
NEEDS_ARCHIVE: Final = (Recall,)

_NO_MEMORY: Final = "nothing is remembered, so this does nothing; set 'memory:', or take this out"
_NO_FACTS: Final = "no fact is kept with memory.archive switched off; write 'keep: forever', or take this out"
_NO_ARCHIVE: Final = (
    "there is no archive, without which this does nothing;"
    " set memory.archive.url (ARCHIVE_URL), or take this out"
)


def _memory_warnings(settings: Settings, memory: Memory) -> Warnings:
    steps = {type(step) for pipeline in settings.pipelines.values() for step in pipeline.request}
    if memory.summaries and not any(issubclass(step, InjectSummaries) for step in steps):
        message = "no pipeline shows summaries to a model; add inject_summaries to one, or take this out"
        yield ("memory", "summaries"), message
    if memory.facts and not any(issubclass(step, InjectFacts) for step in steps):
        message = "no pipeline shows facts to a model; add inject_facts to one, or take this out"
        yield ("memory", "facts"), message
    if 3 * memory.window.messages_after_cut > 2 * memory.window.max_messages:
        message = "so little is cut that it is cut every few turns; keep at most two thirds of 'max_messages'"
        yield ("memory", "window", "keep_messages"), message
    if not memory.work and memory.sessions.get_secret_value() == "memory:":
        message = "no worker sees sessions in the server's own process (memory:); take this out"
        yield ("memory", "work"), message
    if memory.facts and not memory.keeps_facts:
        yield ("memory", "facts"), _NO_FACTS
    if memory.recall != RecallAids() and not memory.archive_url:
        yield ("memory", "recall"), _NO_ARCHIVE


# --- pipelines


def _pipeline_warnings(pipeline: Pipeline, memory: Memory | None) -> Warnings:
    if memory is None:
        yield from _idle(pipeline, (*NEEDS_MEMORY, *NEEDS_FACTS, *NEEDS_ARCHIVE), _NO_MEMORY, tools=True)
    else:
        if not memory.archive_url:
            yield from _idle(pipeline, NEEDS_ARCHIVE, _NO_ARCHIVE)
        if not memory.keeps_facts:
            yield from _idle(pipeline, NEEDS_FACTS, _NO_FACTS, tools=True)
    for i, name in enumerate(pipeline.upstreams):
        if name in pipeline.upstreams[:i] and not pipeline.hedge:
            yield ("upstreams", i), "this upstream stands here twice; a second time it fails as the first did"
    if pipeline.hedge and len(pipeline.upstreams) == 1:
        yield ("hedge",), "there is no second upstream to ask; name one, or this one once more"
    yield from _step_warnings(pipeline, summarising=bool(memory and memory.summaries))
    for i, test in enumerate(pipeline.tests):
        if test.is_vacuous:
            yield ("tests", i), "this case holds whatever comes; say what must: 'expect', for one"


def _idle(
    pipeline: Pipeline, kinds: tuple[type[RequestFilter], ...], message: str, *, tools: bool = False
) -> Warnings:
    """Steps, and ``tools``, that do nothing for want of memory or of a part of it."""
    if tools and pipeline.tools:
        yield ("tools",), message
    for i, step in enumerate(pipeline.request):
        if isinstance(step, kinds):
            yield ("request", i), message


def _step_warnings(pipeline: Pipeline, *, summarising: bool) -> Warnings:
    for key, steps in (("request", pipeline.request), ("answer", pipeline.answer)):
        for i in duplicates(steps):
            yield (key, i), "this step stands here twice with the same options; keep one"
    for i, message in order_warnings(pipeline.request, summarising=summarising):
        yield ("request", i), message
    for i, message in agreement_warnings(pipeline.request):
        yield ("request", i), message
