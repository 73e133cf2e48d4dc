"""From settings to the objects that serve them."""

from proxy.assembly.application import app, parts
from proxy.assembly.memory import remembered, tenants
from proxy.assembly.pipelines import pipelines

__all__ = ["app", "parts", "pipelines", "remembered", "tenants"]
