"""A port that is served: the processes, the sockets and the protocol.

``server`` first: one process, with its ``listening`` sockets, ``signals``, ``files`` and ``runtime``;
``reload`` gives it a new configuration. Several are a ``fleet``, which a ``crew`` keeps alive: each has a
``membership`` and tells its ``neighbours`` what they need to know. ``protocol`` is HTTP as callers speak
it: ``heads`` are looked at, ``refusal`` answers what is none, and answers go out ``chunked``, or
``unframed``.
"""
