"""API keys and their limits, and the secret of a webhook."""
