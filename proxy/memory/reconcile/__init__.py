"""What was heard is taken into the session; the same again leaves the same.

``reconcile`` first: a window's way in. It asks ``overtaken`` (is it late?), ``absence`` (what was taken
back?) and ``question`` (what is to be answered?), ``weaving`` puts the entries together, and ``heard``
makes each of them. ``answer`` puts in what the model said. ``lives``, ``history`` and ``utterance`` take
what an engine tells of a whole talk; ``unsaid`` is what the archive may not tell of this one, and
``spelling`` tells answers as they are held.
"""
