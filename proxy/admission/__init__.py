"""Who may come in, and how much each may ask for.

``gate`` first: a key's holder, or without keys (``keys``) whoever speaks from this machine (``loopback``).
``quota`` holds each key to its limits, with ``counts`` of this process where no Redis counts for all.
``webhook`` knows who may tell of what happened.
"""
