"""From settings to the application that serves them."""

import os
from collections.abc import Mapping

from proxy.app import App
from proxy.observe.metrics import Metrics
from proxy.settings.build import build_runtime
from proxy.settings.settings import Settings
from proxy.traces import Traces


def build_app(
    settings: Settings, environ: Mapping[str, str] = os.environ, *, metrics: Metrics | None = None
) -> App:
    """The application that a configuration describes; ``environ`` says which proxies lead to the models."""
    metrics, traces = metrics or Metrics(), Traces()
    return App(build_runtime(settings, environ, metrics, traces), metrics, traces)
