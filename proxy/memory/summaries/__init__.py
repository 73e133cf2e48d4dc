"""Sessions kept short: the oldest turns give way to summaries, and none is lost.

``plan`` first: which turns are due. ``cap`` finds where a session may be cut, an ``author`` makes what stands
for the turns, ``compaction`` puts it in their place, ``digest`` stands in for a model that does not answer,
and ``scale`` corrects how many tokens all of it is. ``summaries`` does this in a store, for the worker and
over HTTP.
"""
