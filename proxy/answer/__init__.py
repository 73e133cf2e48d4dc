"""An answer's bytes: where an event ends, what it carries, what filters make of it, and what it said.

On the way out ``framing`` finds the events, ``payload`` reads them, and ``rewriting`` sends their words
through ``stages``, one for each choice; where these change nothing, bytes stay as they came. Afterwards
``transcript`` reads back what was said, and ``calls`` puts tool calls together from their pieces.
"""
