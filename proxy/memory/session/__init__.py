"""A session as it is held, and the values that it is made of; nothing here knows an engine's window.

``entry`` first: one message as it was heard. Then ``session``: entries, in lives and turns. And what it
keeps beside them: ``segment`` (a summary and how far it reaches), ``newest`` and ``retry`` (the newest
request, and whether one comes again), ``told`` (facts at the prompts' head), ``agents``, ``forgotten``,
``unheard``, ``prompts``, and who speaks (``speaker``, ``guests``). ``order`` and ``fingerprint`` are rules
for entries; ``cold`` reads those that moved out of a call's way.
"""
