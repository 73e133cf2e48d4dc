"""Which upstream is asked, and what becomes of one that does not answer.

``fallback`` first: it asks ``candidates`` one after the other, each in an ``attempt``, on one ``course``,
and finds a ``remedy`` for one that fails. ``opening`` is when a stream has begun to answer, ``unlabelled``
knows a stream that does not say it is one, and ``whole`` a completion from what is none.
"""
