"""What is known of persons beyond a call: learnt from what they said, corrected, and told.

``knowledge`` first: facts of one person, each once, in the archive; ``mem0`` is another place for them.
``learning`` finds which turns are due and keeps what a model found there. ``acquaintance`` reads what a
call needs within its deadline, and ``telling`` puts it into a prompt whose head stands still; ``promises``
are what a caller was told is so, kept until it is.
"""
