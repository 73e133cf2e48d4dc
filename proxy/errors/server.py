"""What is wrong here, and not with a request."""

from proxy.errors.error import TurnkeeperError


class FilterFailed(TurnkeeperError):
    """A filter raised an error, or returned what is none of a filter's results."""

    code = "filter_failed"


class ShuttingDown(TurnkeeperError):
    """The server ends before the answer does."""

    status = 503
    code = "shutting_down"


class MemoryUnavailable(TurnkeeperError):
    """The store does not answer, is full, or cannot read what it holds."""

    status = 503
    code = "memory_unavailable"


class ConfigError(TurnkeeperError):
    """The configuration is wrong: all its faults, a line each."""
