"""A configuration tried without a model: what each filter does to a request, and whether cases hold.

``explain`` first: the steps of a turn, told as an ``explanation``, with the ``diff`` of each, what
``stripping`` took away, and no more than ``disclosure`` allows. A ``sample`` is a request in a file.
``cases`` are tried, and their ``verdict``, like a ``narration`` of an explanation, is a ``sheet`` for
people.
"""
