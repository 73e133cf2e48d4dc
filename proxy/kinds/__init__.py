"""What each kind of upstream takes, and the body that it gets."""

from proxy.kinds.body import compose
from proxy.kinds.kind import Kind
from proxy.kinds.vendors import KINDS

__all__ = ["KINDS", "Kind", "compose"]
