"""From a YAML file to settings, or to all that is wrong with it.

``load`` first: it reads a ``document``, fills in what the environment says (``interpolation``) and makes
``settings/`` of it, each a ``part`` with values of a ``value``, ``base_url`` or ``header``. A ``step`` is a
filter from a ``shelf``, be it a ``plugin``; a ``case`` is tried beside a pipeline, and a ``draft`` is
filters alone. ``crosscheck`` looks at the whole, by the rules of ``sequence``, ``accord``,
``lack`` and ``vendor``.
What is wrong is a ``fault``, told with ``advice`` and the ``word`` that was meant.
"""
