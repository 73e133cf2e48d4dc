"""What is asked for and can do nothing, for want of memory or of an archive: rules as data."""

from collections.abc import Iterator
from typing import Final

from filters.inject_episodes import InjectEpisodes
from filters.inject_facts import InjectFacts
from filters.inject_summaries import InjectSummaries
from filters.recall import Recall
from filters.restore_history import RestoreHistory
from proxy.configuration.fault import Place
from proxy.configuration.settings import Memory, Pipeline, RecallAids, Settings

OF_MEMORY: Final = (RestoreHistory, InjectSummaries, InjectEpisodes)
OF_AN_ARCHIVE: Final = (InjectFacts, Recall)

_NO_MEMORY: Final = "nothing is remembered, so this does nothing; set 'memory:', or take this out"
_NO_ARCHIVE: Final = (
    "there is no archive, without which this does nothing;"
    " set memory.archive.url (ARCHIVE_URL), or take this out"
)

_NO_WORKER: Final = "no worker sees sessions in the server's own process (memory:); take this out"


def findings(settings: Settings) -> Iterator[tuple[Place, str]]:
    """Where something is asked for in vain, and what to do."""
    memory = settings.memory
    if memory and not memory.work and memory.sessions.get_secret_value() == "memory:":
        yield ("memory", "work"), _NO_WORKER
    if memory and memory.archive_url:
        return
    if memory:
        yield from ((("memory", name), _NO_ARCHIVE) for name in _working_on_the_archive(memory))
    for name, pipeline in settings.pipelines.items():
        for place, message in _of_pipeline(pipeline, is_remembering=memory is not None):
            yield ("pipelines", name, *place), message


def _working_on_the_archive(memory: Memory) -> Iterator[str]:
    if memory.facts:
        yield "facts"
    if memory.recall != RecallAids():
        yield "recall"


def _of_pipeline(pipeline: Pipeline, *, is_remembering: bool) -> Iterator[tuple[Place, str]]:
    idle = OF_AN_ARCHIVE if is_remembering else (*OF_MEMORY, *OF_AN_ARCHIVE)
    message = _NO_ARCHIVE if is_remembering else _NO_MEMORY
    if pipeline.tools:
        yield ("tools",), message
    yield from (
        (("request", i), message) for i, step in enumerate(pipeline.request) if isinstance(step, idle)
    )
