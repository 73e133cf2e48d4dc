"""Redaction: what must not be stored is replaced by marks before it reaches a store."""
