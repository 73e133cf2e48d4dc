from typing import Annotated

from pydantic import AfterValidator

from proxy.configuration.advice import advising
from proxy.configuration.part import Part
from proxy.observe.tracing import address


class OpenTelemetry(Part):
    """Where a span for each turn and for its stages goes; wants ``turnkeeper[traces]``."""

    endpoint: Annotated[str, AfterValidator(advising(address))] = ""
    """An OTLP address over HTTP, such as ``http://127.0.0.1:4318/v1/traces``; empty sends none."""
