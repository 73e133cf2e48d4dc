"""What filters and configurations say of themselves: pages, a schema, lists.

A ``page`` of a filter with each ``option`` first. ``reference`` and ``listing`` put pages together, for
Markdown and for a terminal; ``manual`` tells the settings, ``figures`` the metrics. ``schema`` says what a
model takes, and ``editor`` what a whole configuration may be.
"""
