"""The web page: what callers heard, what models saw, where the time went."""
