"""What must never be stored gives way to marks before it reaches a store.

``redaction`` first: all that memory holds, with marks. ``veil`` is a client's window as memory sees it, and
the way back to the client's own words; ``halves`` are finds that were cut in the middle (``opening``: what
stands before one). ``redacting`` stands at the stores' edge, behind everybody who writes.
"""
