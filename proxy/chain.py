"""The chain: request filters run one after the other, and nothing else."""

import time
from collections.abc import Iterable

from filters.base import Context, Fields, Messages, RequestFilter

Taken = list[tuple[str, float]]
"""The module of each filter that has run, and how long it took, in seconds."""


def run(
    filters: Iterable[RequestFilter], messages: Messages, context: Context, taken: Taken | None = None
) -> Messages:
    """The messages as the last filter leaves them; ``taken`` is appended to."""
    if taken is None:
        taken = []
    since = time.perf_counter()
    for step in filters:
        messages = step.apply(messages, context)
        now = time.perf_counter()
        taken.append((type(step).__module__, now - since))
        since = now
    return messages


def set_fields(filters: Iterable[RequestFilter], fields: Fields, context: Context) -> Fields:
    """The request's other fields as the last filter leaves them."""
    for step in filters:
        fields = step.set(fields, context)
    return fields
