"""Runs the request filters of a pipeline, one after the other."""

import time
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from filters.base import Context, Fields, Messages, RequestFilter
from filters.injection import users
from filters.message import Message
from proxy.errors import FilterFailed, filter_failed, filter_name, invalid_filter_result

SHIPPED: Final = "filters."


class FilterLog(msgspec.Struct):
    """What a run of the chain leaves behind besides the messages.

    ``times`` are each filter's module and the seconds that it took. ``failed`` takes the names of filters
    that fail; where it is ``None``, none may. ``omissions`` name what was left out for want of room, and
    ``room`` is how many user messages had some.
    """

    times: list[tuple[str, float]] = []
    failed: list[str] | None = None
    omissions: list[str] = []
    room: int | None = None


def run(
    filters: Iterable[RequestFilter], messages: Messages, context: Context, log: FilterLog | None = None
) -> Messages:
    """The messages as the last filter leaves them. Raises FilterFailed for one that fails and may not."""
    log = log or FilterLog()
    start = time.perf_counter()
    for step in filters:
        failure: FilterFailed | None = None
        try:
            result = step.apply(messages, context)
        except Exception as error:  # noqa: BLE001 - a filter of the user's own may raise anything
            failure = filter_failed(step, error)
        else:
            if not type(step).__module__.startswith(SHIPPED) and not (
                isinstance(result, Sequence) and all(isinstance(message, Message) for message in result)
            ):
                failure = invalid_filter_result(step)
        if failure is not None:
            _note_failure(step, failure, log)
        else:
            if step.leaves_out and len(result) < len(messages):
                log.omissions.append(step.leaves_out)
                log.room = len(users(result))
            messages = result
        now = time.perf_counter()
        log.times.append((type(step).__module__, now - start))
        start = now
    return messages


def set_fields(
    filters: Iterable[RequestFilter], fields: Fields, context: Context, log: FilterLog | None = None
) -> Fields:
    """The request's other fields as the last filter leaves them. Raises FilterFailed as ``run`` does."""
    for step in filters:
        try:
            fields = step.set(fields, context)
        except Exception as error:  # noqa: BLE001 - a filter of the user's own may raise anything
            _note_failure(step, filter_failed(step, error), log)
    return fields


def _note_failure(step: RequestFilter, failure: FilterFailed, log: FilterLog | None) -> None:
    if log is None or log.failed is None:
        raise failure from None
    log.failed.append(filter_name(step))
