"""From settings to the objects that serve them."""

from proxy.assembly.application import app, parts
from proxy.assembly.memory import memory, tenants
from proxy.assembly.pipelines import pipelines

__all__ = ["app", "memory", "parts", "pipelines", "tenants"]
