"""Text as it streams: what filters of answers look for and change, a piece at a time.

``stage`` and ``rewriter`` first: how words are held back until it is clear what they are. A rewriter for
each thing: ``block``, ``emphasis`` and ``tag`` make up ``markdown``; ``address``, ``emoji``, ``prefix``,
``reasoning``. ``sensitive`` and ``redaction`` hide what ``pattern`` and ``personal`` find. No file here is
a filter.
"""
