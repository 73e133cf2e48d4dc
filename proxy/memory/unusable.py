"""An answer of no use."""


class Unusable(Exception):
    """A model answered, and nothing can be made of it."""
