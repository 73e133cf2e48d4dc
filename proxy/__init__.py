"""Turnkeeper: an OpenAI-compatible LLM proxy for voice agents."""

DISTRIBUTION = "turnkeeper"
"""Tells this package from another distribution's of the same name."""
