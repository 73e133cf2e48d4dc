"""Summaries: the oldest turns of a session give way to them."""
