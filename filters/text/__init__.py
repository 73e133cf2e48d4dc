"""Searches and rewrites text, whole or in the pieces in which it streams."""
