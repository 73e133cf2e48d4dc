from typing import Any

import msgspec

_KEYS = {"message", "type", "param", "code"}


def openai_error(body: bytes, message: str, code: str | None) -> bytes:
    """An upstream's error body in OpenAI's shape; one that has it already stays as it is."""
    said: Any
    try:
        said = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        said = body[:2000].decode("utf-8", "replace").strip()
    whole = said
    while isinstance(said, list) and said:  # Gemini wraps its error in a list
        said = said[0]
    inner = said.get("error", said) if isinstance(said, dict) else said
    if inner is not said and isinstance(inner, dict) and inner.keys() >= _KEYS:
        return body if said is whole else msgspec.json.encode(said)
    return msgspec.json.encode({"error": _four_keys(inner, message, code)})


def _four_keys(error: Any, message: str, code: str | None) -> dict[str, Any]:
    known = error if isinstance(error, dict) else {"message": error}
    said = known.get("message") or known.get("detail") or message
    text = said if isinstance(said, str) else msgspec.json.encode(said).decode()
    return {"type": "upstream_error", "param": None, "code": code, **known, "message": text}
