"""A filter that fails: which, and where. Its error's own words may quote a caller, and are told to nobody."""

import traceback
from pathlib import PurePath

from proxy.errors import FilterFailed


def name_of(step: object) -> str:
    """A filter's name, as configurations use it: that of its module."""
    return type(step).__module__.rpartition(".")[2]


def failed(step: object, error: Exception) -> FilterFailed:
    """What is said of a filter, or of its stage, that raised an error."""
    where = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{PurePath(where.filename).name}:{where.lineno}"
    return FilterFailed(f"The filter '{name_of(step)}' failed with {type(error).__name__} at {place}.")


def misled(step: object) -> FilterFailed:
    """What is said of a filter that returned no messages."""
    return FilterFailed(f"The filter '{name_of(step)}' returned something else than a list of messages.")
