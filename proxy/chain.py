"""The chain: request filters run one after the other, and nothing else."""

from collections.abc import Callable, Iterable

from filters.base import Context, Fields, Messages, RequestFilter


def run(
    filters: Iterable[RequestFilter],
    messages: Messages,
    context: Context,
    tell: Callable[[str], None] | None = None,
) -> Messages:
    """The messages as the last filter leaves them; ``tell`` hears the names of what was left out for room."""
    for step in filters:
        before = len(messages)
        messages = step.apply(messages, context)
        if step.leaves_out and tell and len(messages) < before:
            tell(step.leaves_out)
    return messages


def set_fields(filters: Iterable[RequestFilter], fields: Fields, context: Context) -> Fields:
    """The request's other fields as the last filter leaves them."""
    for step in filters:
        fields = step.set(fields, context)
    return fields
