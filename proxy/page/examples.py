"""Requests as engines send them, to be tried."""

from collections.abc import Mapping
from importlib.resources import files
from typing import Final

TITLES: Final[Mapping[str, str]] = {
    "agora": "Agora",
    "livekit": "LiveKit",
    "pipecat": "Pipecat",
    "vapi": "Vapi",
    "elevenlabs": "ElevenLabs",
    "hume": "Hume",
    "tencent": "Tencent",
    "volcengine": "Volcengine",
    "zego": "ZEGO",
    "alibaba": "Alibaba",
}


def example(name: str) -> str | None:
    """A request of an engine as JSON; ``None`` for an engine that has none."""
    if name not in TITLES:
        return None
    return (files("proxy.page") / "examples" / f"{name}.json").read_text("utf-8")
