"""Which tools of ours a turn may call."""

from collections.abc import Callable

from filters.base import Fields
from filters.redact import Redact
from proxy.identity import Identity
from proxy.memory.owner import Owner
from proxy.memory.reconcile.unsaid import Unsaid
from proxy.pipeline import Pipeline
from proxy.tools import Notebook, Tools, offered


def tools(fields: Fields, pipeline: Pipeline, who: Identity, unsaid: Unsaid | None = None) -> Tools | None:
    """The pipeline's memory tools: in every request of a session, and in none without one.

    What is ``unsaid`` they do not find.
    """
    archiving = pipeline.memory.archiving if pipeline.memory else None
    if not pipeline.tools or archiving is None or who.key is None:
        return None
    offer = offered(fields, pipeline.tools)
    if offer is None:
        return None
    person = Owner(who.tenant, who.user or "")
    known, found = archiving.knowledge, archiving.finder
    notebook = Notebook(
        person, known, found, pipeline.zone, archiving.promises, unsaid=unsaid, shown=_shown(pipeline)
    )
    return Tools(offer, notebook, pipeline.tool_rounds)


def _shown(pipeline: Pipeline) -> Callable[[str], str]:
    """A text that a tool found, as the pipeline's model may see it."""
    steps = [each for each in pipeline.filters if isinstance(each, Redact) and "tool" in each.roles]

    def shown(text: str) -> str:
        for step in steps:
            text = step.text(text)
        return text

    return shown
