"""What is no fault in a configuration, yet cannot be meant: rules over all of it, as data."""

import re
from collections.abc import Callable, Iterator
from typing import Final
from urllib.parse import urlsplit

import msgspec

from filters.base import RequestFilter
from filters.inject_episodes import InjectEpisodes
from filters.inject_facts import InjectFacts
from filters.inject_summaries import InjectSummaries
from filters.recall import Recall
from filters.restore_history import RestoreHistory
from proxy.admission.gate import is_loopback_name
from proxy.settings import step_rules
from proxy.settings.document import KeyPath
from proxy.settings.memory import Memory, RecallAids
from proxy.settings.pipeline import Pipeline, Upstream
from proxy.settings.settings import Settings
from proxy.settings.values import PRACTICE

_BRACELESS: Final = re.compile(r"\$[A-Z][A-Z0-9_]+")
OF_MEMORY: Final = (RestoreHistory, InjectSummaries, InjectEpisodes)
OF_AN_ARCHIVE: Final = (InjectFacts, Recall)
_NO_MEMORY: Final = "nothing is remembered, so this does nothing; set 'memory:', or take this out"
_NO_ARCHIVE: Final = (
    "there is no archive, without which this does nothing;"
    " set memory.archive.url (ARCHIVE_URL), or take this out"
)
_NO_WORKER: Final = "no worker sees sessions in the server's own process (memory:); take this out"
_PROVIDERS: Final = {
    "api.anthropic.com": "anthropic",
    "api.cerebras.ai": "groq",
    "api.groq.com": "groq",
    "api.mistral.ai": "mistral",
    "generativelanguage.googleapis.com": "gemini",
}
_OLLAMA_S_PORT: Final = 11434
_AZURE: Final = ".openai.azure.com"


class Finding(msgspec.Struct, frozen=True):
    """Something at one place that cannot be meant, and what to write instead."""

    place: KeyPath
    message: str


def settings_warnings(settings: Settings) -> Iterator[Finding]:
    """All that the rules find, in no order."""
    for name, upstream in settings.upstreams.items():
        for rule in UPSTREAM_RULES:
            if rule.holds(upstream):
                yield Finding(("upstreams", name, *rule.key), rule.message)
        for place, message in provider_warnings(upstream):
            yield Finding(("upstreams", name, *place), message)
    yield from _unused(settings)
    yield from _pathless(settings)
    yield from _unseen(settings)
    yield from _hasty(settings)
    yield from (Finding(place, message) for place, message in memory_warnings(settings))
    summarising = bool(settings.memory and settings.memory.summaries)
    for name, pipeline in settings.pipelines.items():
        for place, message in _of_pipeline(pipeline, summarising=summarising):
            yield Finding(("pipelines", name, *place), message)


class UpstreamRule(msgspec.Struct, frozen=True):
    """A warning for an upstream for which a condition holds; ``key`` is where it is shown."""

    holds: Callable[[Upstream], bool]
    key: KeyPath
    message: str


def _is_remote(upstream: Upstream) -> bool:
    return upstream.base_url != PRACTICE and not is_loopback_name(urlsplit(upstream.base_url).netloc)


def _has_key(upstream: Upstream) -> bool:
    named = (name for name in upstream.headers if "auth" in name or "key" in name or "token" in name)
    return bool(upstream.api_key.get_secret_value()) or upstream.forward_key or any(named)


UPSTREAM_RULES: Final = (
    UpstreamRule(
        lambda u: _is_remote(u) and not _has_key(u),
        ("api_key",),
        "no key is sent to an upstream on another machine; set api_key, or forward_key",
    ),
    UpstreamRule(
        lambda u: _is_remote(u) and _has_key(u) and u.base_url.lower().startswith("http:"),
        ("base_url",),
        "a key goes to another machine without encryption; write https",
    ),
    UpstreamRule(
        lambda u: bool(_BRACELESS.fullmatch(u.api_key.get_secret_value())),
        ("api_key",),
        "without braces this is text, not a variable; write ${NAME}",
    ),
    UpstreamRule(
        lambda u: u.first_token >= u.total,
        ("first_token",),
        "'total' ends a request before this does; make it shorter than 'total'",
    ),
)


def _unused(settings: Settings) -> Iterator[Finding]:
    for name in settings.upstreams.keys() - _talking(settings) - _helping(settings):
        yield Finding(("upstreams", name), "no pipeline uses this upstream; name it in one, or take it out")


def _pathless(settings: Settings) -> Iterator[Finding]:
    """Vendors have chat completions below a path; what helps recall may be at the root of a host."""
    for name in _talking(settings):
        address = settings.upstreams[name].base_url
        if address != PRACTICE and not urlsplit(address).path:
            message = "this address has no path, and most models are under /v1; write it as its vendor does"
            yield Finding(("upstreams", name, "base_url"), message)


def _talking(settings: Settings) -> set[str]:
    """The upstreams that are asked for chat completions."""
    used = {name for pipeline in settings.pipelines.values() for name in pipeline.upstreams}
    memory = settings.memory
    return used | {each.upstream for each in (memory.summaries, memory.facts) if each} if memory else used


def _helping(settings: Settings) -> set[str]:
    recall = settings.memory.recall if settings.memory else RecallAids()
    return {each.upstream for each in (recall.embeddings, recall.rerank) if each}


def _unseen(settings: Settings) -> Iterator[Finding]:
    memory = settings.memory
    if memory and memory.summaries and not _shows(settings, InjectSummaries):
        message = "no pipeline shows summaries to a model; add inject_summaries to one, or take this out"
        yield Finding(("memory", "summaries"), message)
    if memory and memory.facts and not _shows(settings, InjectFacts):
        message = "no pipeline shows facts to a model; add inject_facts to one, or take this out"
        yield Finding(("memory", "facts"), message)


def _hasty(settings: Settings) -> Iterator[Finding]:
    """A window that is cut so little that it must be cut again soon."""
    window = settings.memory.window if settings.memory else None
    if window and 3 * window.kept > 2 * window.max_messages:
        message = "so little is cut that it is cut every few turns; keep at most two thirds of 'max_messages'"
        yield Finding(("memory", "window", "keep_messages"), message)


def _shows(settings: Settings, wanted: type[RequestFilter]) -> bool:
    steps = (step for pipeline in settings.pipelines.values() for step in pipeline.request)
    return any(isinstance(step, wanted) for step in steps)


def _of_pipeline(pipeline: Pipeline, *, summarising: bool) -> Iterator[tuple[KeyPath, str]]:
    for i, name in enumerate(pipeline.upstreams):
        if name in pipeline.upstreams[:i] and not pipeline.hedge:
            yield ("upstreams", i), "this upstream stands here twice; a second time it fails as the first did"
    if pipeline.hedge and len(pipeline.upstreams) == 1:
        yield ("hedge",), "there is no second upstream to ask; name one, or this one once more"
    for key, steps in (("request", pipeline.request), ("answer", pipeline.answer)):
        for i in step_rules.duplicates(steps):
            yield (key, i), "this step stands here twice with the same options; keep one"
    for i, message in step_rules.order_warnings(pipeline.request, _there(summarising=summarising)):
        yield ("request", i), message
    for i, message in step_rules.agreement_warnings(pipeline.request):
        yield ("request", i), message
    for i, case in enumerate(pipeline.tests):
        if case.is_idle:
            yield ("tests", i), "this case holds whatever comes; say what must: 'expect', for one"


def _there(*, summarising: bool) -> Callable[[str], bool]:
    """Which filters are worth adding: without summaries nothing has to be injected."""
    return lambda name: step_rules.is_shipped(name) and (summarising or name != "inject_summaries")


def memory_warnings(settings: Settings) -> Iterator[tuple[KeyPath, str]]:
    """Where something is asked for in vain, and what to do."""
    memory = settings.memory
    if memory and not memory.work and memory.sessions.get_secret_value() == "memory:":
        yield ("memory", "work"), _NO_WORKER
    if memory and memory.archive_url:
        return
    if memory:
        yield from ((("memory", name), _NO_ARCHIVE) for name in _working_on_the_archive(memory))
    for name, pipeline in settings.pipelines.items():
        for place, message in _idle_steps(pipeline, is_remembering=memory is not None):
            yield ("pipelines", name, *place), message


def _working_on_the_archive(memory: Memory) -> Iterator[str]:
    if memory.facts:
        yield "facts"
    if memory.recall != RecallAids():
        yield "recall"


def _idle_steps(pipeline: Pipeline, *, is_remembering: bool) -> Iterator[tuple[KeyPath, str]]:
    idle = OF_AN_ARCHIVE if is_remembering else (*OF_MEMORY, *OF_AN_ARCHIVE)
    message = _NO_ARCHIVE if is_remembering else _NO_MEMORY
    if pipeline.tools:
        yield ("tools",), message
    yield from (
        (("request", i), message) for i, step in enumerate(pipeline.request) if isinstance(step, idle)
    )


def provider_warnings(upstream: Upstream) -> Iterator[tuple[KeyPath, str]]:
    """Where an upstream is not written as its vendor takes it, and what to write."""
    address = urlsplit(upstream.base_url)
    host = (address.hostname or "").lower()
    kind = "ollama" if address.port == _OLLAMA_S_PORT else _PROVIDERS.get(host)
    if kind and upstream.accepts == "openai":
        message = f"this vendor does not take all that OpenAI does; write {kind} (UPSTREAM_ACCEPTS={kind})"
        yield ("accepts",), message
    if host.endswith(_AZURE) and address.path not in {"", "/", "/openai/v1"}:
        message = (
            "Azure has chat completions as OpenAI does under /openai/v1, and nowhere else without a query;"
            " end the address so, and name the deployment as the model"
        )
        yield ("base_url",), message
