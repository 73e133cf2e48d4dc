"""A window that an engine replays, laid beside what is held: which line is which. Nothing is changed here.

``line`` first: what is compared; then ``replay``: what comes of it, and ``beside``: the steps in their
order. Of these, ``life`` tells whether turns are counted anew, ``numbering`` goes by turn numbers,
``glance`` by the newest lines; ``alignment`` with ``fixed``, ``gap``, ``kin`` and ``sliding`` finds the
likeliest pairs where neither will do. ``pieces``, ``results``, ``lone`` and ``bygone`` are windows of odd
kinds. ``belated``, ``coverage``, ``onesided`` and ``parting`` say what a prompt needs to know of the result.
"""
