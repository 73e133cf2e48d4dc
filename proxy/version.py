"""The version of Turnkeeper."""

from importlib.metadata import version

VERSION = version("turnkeeper")
