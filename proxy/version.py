"""Which Turnkeeper this is."""

from importlib.metadata import version

VERSION = version("turnkeeper")
