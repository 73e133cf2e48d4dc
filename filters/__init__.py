"""The filters that Turnkeeper ships, one file each."""

DISTRIBUTION = "turnkeeper"
"""Tells this package from another distribution's of the same name."""
