"""What is told of turns: metrics, the log, spans, the feed.

``watch`` first: it notes what happens to one turn (its ``clock``, ``tries``, ``usage`` and ``lineage``) for
next to nothing. An ``account`` is made of that when nobody waits, for all who tell of it: ``metrics`` (in
``families``, added up by ``tally`` where processes are several, with how the server is ``standing`` and how
the last ``hour`` went), a line by ``access`` in the ``log`` (with its ``words``, where that is wanted),
``spans`` where ``tracing`` is set, and the ``feed``. ``refusals`` are who was not let in, ``gone`` is who
was forgotten.
"""
