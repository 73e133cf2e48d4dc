"""What was said, for good: every turn as heard, facts and documents, and how they are found again.

``archive`` first: the contract. ``sql`` keeps it, with ``shelf`` in hand and in ``steps`` that a
``database`` carries out, ``sqlite`` or ``postgres``: they share ``statements`` and differ in a ``dialect``.
``open`` makes one from an address. The steps are ``turns`` (let in by ``welcome``), ``facts``,
``documents``, ``meanings``, ``unplaced``, ``search`` and ``oblivion``.

What goes in: ``archivist`` brings sessions, one at a time by ``keeping``, with what has ``moved`` out of
them; ``reading`` and ``chunks`` make documents of files, and ``embedding`` gives each text its ``vector``.
What comes out: ``passages`` asks for a call and ``finder`` for everybody, by ``lexicon``, ``stems``,
``moments`` and ``ranking``; ``latest`` are facts that nobody waits for, and ``archived`` is what is held of
one person.
"""
