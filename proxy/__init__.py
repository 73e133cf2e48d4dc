"""Turnkeeper: an OpenAI-compatible LLM proxy for voice agents."""
