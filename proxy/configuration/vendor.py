"""What a vendor's address tells of what may be sent there."""

from collections.abc import Iterator
from typing import Final
from urllib.parse import urlsplit

from proxy.configuration.fault import Place
from proxy.configuration.settings import Upstream

_KINDS: Final = {
    "api.anthropic.com": "anthropic",
    "api.cerebras.ai": "groq",
    "api.groq.com": "groq",
    "api.mistral.ai": "mistral",
    "generativelanguage.googleapis.com": "gemini",
}
_OLLAMA_S_PORT: Final = 11434
_AZURE: Final = ".openai.azure.com"


def findings(upstream: Upstream) -> Iterator[tuple[Place, str]]:
    """Where an upstream is not written as its vendor takes it, and what to write."""
    address = urlsplit(upstream.base_url)
    host = (address.hostname or "").lower()
    kind = "ollama" if address.port == _OLLAMA_S_PORT else _KINDS.get(host)
    if kind and upstream.accepts == "openai":
        message = f"this vendor does not take all that OpenAI does; write {kind} (UPSTREAM_ACCEPTS={kind})"
        yield ("accepts",), message
    if host.endswith(_AZURE) and address.path not in {"", "/", "/openai/v1"}:
        message = (
            "Azure has chat completions as OpenAI does under /openai/v1, and nowhere else without a query;"
            " end the address so, and name the deployment as the model"
        )
        yield ("base_url",), message
