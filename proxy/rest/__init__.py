"""The memory API and webhooks over HTTP."""
