"""The web page: what callers heard, what models saw, where the time went.

``door`` first: it lets nothing else here be loaded before somebody knocks. Behind it, the ``house`` has all
pages, an ``entrance`` and a ``room`` for each ``visitor``; they are written on ``paper``, and ``turnstile``
lets one long piece of work through at a time.

Turns are ``live``, and looked at one by one in ``turns``, with a ``timeline``, the ``difference`` that each
filter made, and the ``spending``. ``conversations`` and those ``archived`` are read line by line by
``hearing``; ``people`` is what is held of a person. The ``playground`` tries ``examples``, and ``health``
has a ``plot``.
"""
