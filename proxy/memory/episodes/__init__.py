"""What an agent did lately: each episode expires by itself, and its summaries fit into a prompt.

``episode`` and ``source`` first: what is kept, and who keeps it. ``open`` finds out which that is:
``on_redis``, a key for each (``shelf``), or ``on_store``, a blob for each agent; ``redacted`` stands before
either, and ``span`` says how long each lasts. ``short_term``, ``standalone`` and ``context`` are for an
agent's own process, without a proxy.
"""
