"""What of a message is speech, and when two texts are the same words; nothing here knows a session.

``speech`` first: what of a window is remembered at all. ``functions`` and ``media`` are what it lays aside
or makes plain on the way. ``wording`` compares texts as tolerantly as engines respell them.
"""
