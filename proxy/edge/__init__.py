"""HTTP as every path needs it, before anybody knows what is asked.

``body`` reads a request within its bounds and ``query`` what stands behind its question mark. ``reply`` is
what the client gets: a status once, then bytes, then the end. ``hangup`` ends a turn whose client has left,
and ``endless`` is an answer that only ends so.
"""
