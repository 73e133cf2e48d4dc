"""Sessions in SQL. SQLite and PostgreSQL differ in locking and in how they append, and in nothing else.

``statement`` and ``migrations`` are what both have. ``sqlite`` is a ``file`` with a ``reader`` on the loop
and a ``writer`` in a thread, which makes each ``change``; ``written`` is what is on its way there,
``elsewhere`` tells whether others have written, and ``wal`` empties the log beside it. ``postgres`` goes
through a ``pool`` to an ``address``.
"""
