"""Who may come in, and how much each may ask for.

``gate`` first: a key's holder, or without keys (``keys``) whoever speaks from this machine (``loopback``).
``quota`` holds each key to its limits (``windows``). ``tally`` has them counted, on a Redis for all servers,
or in this process where there is none and while it is away.
``webhook`` knows who may tell of what happened.
"""
