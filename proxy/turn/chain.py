"""Runs the request filters of a pipeline, one after the other."""

import time
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from filters.base import Context, Fields, Messages, RequestFilter
from filters.injection import users
from filters.message import Message
from proxy.errors import FilterFailed, filter_failed, filter_misled, filter_name

SHIPPED: Final = "filters."


class Notes(msgspec.Struct):
    """What is noted of a run: each filter's module and how many seconds it took, and who was passed over.

    ``skipped`` takes the names of filters that fail; where it is ``None``, they may not. ``left_out`` says
    what was left out because there was no room for it, and ``room`` how many messages of the user had some.
    """

    taken: list[tuple[str, float]] = []
    skipped: list[str] | None = None
    left_out: list[str] = []
    room: int | None = None


def run(
    filters: Iterable[RequestFilter],
    messages: Messages,
    context: Context,
    notes: Notes | None = None,
) -> Messages:
    """The messages as the last filter leaves them. Raises FilterFailed for one that fails and may not."""
    notes = notes or Notes()
    since = time.perf_counter()
    for step in filters:
        before = len(messages)
        try:
            messages = apply_filter(step, messages, context)
            if step.leaves_out and len(messages) < before:
                notes.left_out.append(step.leaves_out)
                notes.room = len(users(messages))
        except FilterFailed:
            if notes.skipped is None:
                raise
            notes.skipped.append(filter_name(step))
        now = time.perf_counter()
        notes.taken.append((type(step).__module__, now - since))
        since = now
    return messages


def apply_filter(step: RequestFilter, messages: Messages, context: Context) -> Messages:
    """The messages as one filter leaves them; raises FilterFailed."""
    try:
        shown = step.apply(messages, context)
    except Exception as error:  # noqa: BLE001 - a filter of the user's own may raise anything
        raise filter_failed(step, error) from None
    if not type(step).__module__.startswith(SHIPPED) and not _are_messages(shown):
        raise filter_misled(step)
    return shown


def set_fields(
    filters: Iterable[RequestFilter], fields: Fields, context: Context, notes: Notes | None = None
) -> Fields:
    """The request's other fields as the last filter leaves them; one that fails is treated as in ``run``."""
    for step in filters:
        try:
            fields = apply_fields(step, fields, context)
        except FilterFailed:
            if notes is None or notes.skipped is None:
                raise
            notes.skipped.append(filter_name(step))
    return fields


def apply_fields(step: RequestFilter, fields: Fields, context: Context) -> Fields:
    """The request's other fields as one filter leaves them; raises FilterFailed."""
    try:
        return step.set(fields, context)
    except Exception as error:  # noqa: BLE001 - a filter of the user's own may raise anything
        raise filter_failed(step, error) from None


def _are_messages(shown: object) -> bool:
    return isinstance(shown, Sequence) and all(isinstance(message, Message) for message in shown)
