"""The filters that Turnkeeper ships, one file each."""

DISTRIBUTION = "turnkeeper"
"""The distribution of this package; another distribution may have a package of the same name."""
