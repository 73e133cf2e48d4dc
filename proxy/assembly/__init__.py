"""From settings to the objects that serve them.

``application`` first: all of it. ``pipelines`` have ``targets`` and a time ``zone``. ``memory`` has
``stores``, ``models`` that are asked beside the calls, and ``archiving`` with ``recall``, who helps it.
"""

from proxy.assembly.application import app, parts
from proxy.assembly.memory import remembered, tenants
from proxy.assembly.pipelines import pipelines

__all__ = ["app", "parts", "pipelines", "remembered", "tenants"]
