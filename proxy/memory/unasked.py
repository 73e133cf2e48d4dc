"""A question that nobody could be asked."""


class Unasked(Exception):
    """No model is named that could be asked."""
