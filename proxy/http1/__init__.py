"""HTTP/1.1 as the client speaks it: one noun per file.

A ``pool`` keeps each ``connection`` to an ``origin``; a ``dialer`` opens them over a ``route``, which may
lead by ``proxies`` and a ``tunnel``, and trusts whom ``trust`` names; ``warmth`` keeps one open beforehand.
A request goes out as an ``envelope``, and an ``answer`` comes back, through its ``decoding``.
"""
