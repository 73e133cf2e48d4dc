"""Memory tools that the proxy offers to the model and runs itself, within one answer."""
