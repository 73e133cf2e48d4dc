"""Pictures, sounds and files among what was said: memory holds that there was one, and not the thing."""

from typing import Any, Final

import msgspec

from filters.message import Content, Message

_LONGEST: Final = 500
_WORDS: Final = frozenset({"text", "refusal"})
_NAMES: Final = {
    "image_url": "image",
    "input_image": "image",
    "input_audio": "audio",
    "input_file": "file",
    "video_url": "video",
}


def light(content: Content) -> Content:
    """The content with a mark such as ``[image]`` in the place of what is heavy; a short link stays.

    A session is read with each turn, and what it gives back to a model would be sent again and again.
    """
    if not isinstance(content, list) or not any(map(_is_heavy, content)):
        return content
    return [_mark(part) if _is_heavy(part) else part for part in content]


def lightened(message: Message) -> Message:
    """The message as it is held, so that it is known again."""
    content = message.content
    if not isinstance(content, list) or (kept := light(content)) is content:
        return message
    return msgspec.structs.replace(message, content=kept)


def _mark(part: dict[str, Any]) -> dict[str, Any]:
    kind = str(part.get("type"))[:_LONGEST]
    return {"type": "text", "text": f"[{_NAMES.get(kind, kind)}]"}


def _is_heavy(part: dict[str, Any]) -> bool:
    return _WORDS.isdisjoint(part) and any(map(_is_data, part.values()))


def _is_data(value: object) -> bool:
    """Whether this is, or holds, something that was read from a file, or is as long as that."""
    if isinstance(value, str):
        return len(value) > _LONGEST or value.startswith("data:")
    if isinstance(value, dict):
        return any(map(_is_data, value.values()))
    return isinstance(value, list) and any(map(_is_data, value))
