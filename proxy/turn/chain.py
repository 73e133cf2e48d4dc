"""Runs the request filters of a pipeline, one after the other."""

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from filters.base import Context, Fields, Messages, RequestFilter
from filters.injection import users
from filters.message import Message
from proxy.errors import FilterFailed, RequestError, filter_failed, filter_name, invalid_filter_result

SHIPPED: Final = "filters."
_EMPTY: Final = "no_messages"
_LONGEST_NAME: Final = 40


class FilterLog(msgspec.Struct):
    """What a run of the filters yields besides the messages.

    ``times`` are pairs of a filter's module and the seconds that it took. ``failed`` are the names of filters
    that failed; with ``None`` a failure is raised. ``omissions`` name what did not fit into the prompt, and
    ``room`` is how many user messages did.
    """

    times: list[tuple[str, float]] = []
    failed: list[str] | None = None
    omissions: list[str] = []
    room: int | None = None


def run(filters: Iterable[RequestFilter], messages: Messages, context: Context, log: FilterLog) -> Messages:
    """Applies each filter to the messages of the one before. Raises FilterFailed unless the log takes it."""
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


def set_fields(filters: Iterable[RequestFilter], fields: Fields, context: Context, log: FilterLog) -> Fields:
    """Applies each filter to the request's other fields. Raises FilterFailed unless the log takes it."""
    for step in filters:
        if type(step).set is RequestFilter.set:  # as of nearly all: it changes nothing
            continue
        try:
            fields = step.set(fields, context)
        except Exception as error:  # noqa: BLE001 - a filter of the user's own may raise anything
            _note_failure(step, filter_failed(step, error), log)
    return fields


def no_messages_left(filters: Iterable[RequestFilter], messages: Messages, context: Context) -> RequestError:
    """The error for a request whose messages were all dropped; it says which filter dropped what."""
    dropped: list[str] = []
    for step in filters:  # run again, one by one: they do no I/O, and the same in gives the same out
        rest = run((step,), messages, context, FilterLog(failed=[]))
        missing = Counter(map(_kind, messages)) - Counter(map(_kind, rest))
        if len(rest) < len(messages):
            kinds = ", ".join(
                f"{count} {role} message{'s' if count > 1 else ''}{source}"
                for (role, source), count in missing.items()
            )
            dropped.append(f"'{filter_name(step)}' dropped {kinds}")
        messages = rest
    return RequestError(
        f"The filters leave no message to send: {'; '.join(dropped)}. "
        "Send a message that they keep, or change the pipeline.",
        param="messages",
        code=_EMPTY,
    )


def _kind(message: Message) -> tuple[str, str]:
    """A message's role, and a phrase for its source where it has one."""
    source = f" of source '{message.source[:_LONGEST_NAME]}'" if message.source else ""
    return message.role[:_LONGEST_NAME], source


def _note_failure(step: RequestFilter, failure: FilterFailed, log: FilterLog) -> None:
    if log.failed is None:
        raise failure from None
    log.failed.append(filter_name(step))
