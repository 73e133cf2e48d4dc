"""Turns as they went, kept for a while to be looked at.

``trace`` first: the values of one turn, that were there anyway. ``traces`` keeps a process's newest of
them, which ``kept`` shows as one of the places where a person's words are, and ``graves`` makes whoever was
forgotten elsewhere leave it.
"""
