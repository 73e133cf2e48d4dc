"""The chain: request filters run one after the other, and nothing else."""

from collections.abc import Iterable

from filters.base import Context, Fields, Messages, RequestFilter


def run(filters: Iterable[RequestFilter], messages: Messages, context: Context) -> Messages:
    """The messages as the last filter leaves them."""
    for step in filters:
        messages = step.apply(messages, context)
    return messages


def set_fields(filters: Iterable[RequestFilter], fields: Fields, context: Context) -> Fields:
    """The request's other fields as the last filter leaves them."""
    for step in filters:
        fields = step.set(fields, context)
    return fields
