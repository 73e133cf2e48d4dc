"""From keys to a codec; the cryptography is loaded when there is a key."""

from collections.abc import Sequence
from importlib.metadata import EntryPoint
from typing import Any, Final

from proxy.memory.codec import Codec, Plain

_ENCRYPTION: Final = EntryPoint("encryption", "proxy.memory.encryption:Encryption", "turnkeeper.codecs")
_ADVICE: Final = "make one with: openssl rand -base64 32 | tr +/ -_"


def codec_of(keys: Sequence[str]) -> Codec:
    """Encryption by these keys in base64, newest first; none where all are empty.

    Raises ValueError, which says how to make a key and never repeats what was given.
    """
    given = [key for key in keys if key.strip()]
    if not given:
        return Plain()
    encryption = _loaded()
    try:
        codec: Codec = encryption.parse(",".join(given))
    except ValueError as error:
        raise ValueError(f"{error}; {_ADVICE}") from None
    return codec


def _loaded() -> Any:
    try:
        return _ENCRYPTION.load()
    except ModuleNotFoundError as error:
        raise ValueError(
            f"encryption needs the module {error.name}; install turnkeeper[encryption]"
        ) from None
