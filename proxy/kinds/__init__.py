"""What each kind of upstream takes, and the body that it gets.

A ``kind`` is a list of names, and ``vendors`` has all of them. ``body`` puts together what one gets, with
roles in its ``order``, each ``call_id`` in its form, and ``legacy`` tools in today's.
"""

from proxy.kinds.body import compose
from proxy.kinds.kind import Kind
from proxy.kinds.vendors import KINDS

__all__ = ["KINDS", "Kind", "compose"]
