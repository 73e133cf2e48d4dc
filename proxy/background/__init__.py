"""Work that no caller waits for, and the models that are asked for it.

``worker`` first: it finds what is due of each kind of ``work``, and does it as one process of all;
``pause`` tells it of silent sessions. ``setbacks`` and ``lull`` let rest what fails, and an ``outage`` is
told of once. ``summariser``, with an ``assignment``, and ``extractor`` ask by an ``inquiry``, ``embedder``
and ``reranker`` at an ``endpoint``, all with ``discretion``. What an answer is worth is told by a
``verdict``, and whether notes are a ``refusal`` by their first words.
"""
