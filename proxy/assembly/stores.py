"""Where sessions are kept, as an address says, and what they pass on their way there."""

from pathlib import Path
from typing import NamedTuple

from proxy.configuration.settings import Memory as MemorySettings
from proxy.memory.codec import Codec
from proxy.memory.guard import Guard
from proxy.memory.metered import Meter, Metered
from proxy.memory.open import open_store
from proxy.memory.recent import Recent
from proxy.memory.redaction.codec import RedactingCodec
from proxy.memory.redaction.redaction import NOTHING, Redaction
from proxy.memory.sealing import codec_of
from proxy.memory.sql.elsewhere import Elsewhere
from proxy.memory.store import LEISURE, Store


class Stores(NamedTuple):
    """Where sessions are kept: for calls, behind their guard, and for work in the background.

    ``codec`` and ``redaction`` are what anything passes on its way to where it is kept, and ``elsewhere`` is
    who else writes to the sessions' file.
    """

    calls: Recent
    guard: Guard
    background: Store
    codec: Codec
    redaction: Redaction
    elsewhere: Elsewhere | None


def stores_of(settings: MemorySettings, meter: Meter) -> Stores:
    """The stores; nothing is connected. ``meter`` is told of what calls ask of them."""
    url, path = settings.sessions.get_secret_value(), file_of(settings.sessions.get_secret_value())
    codec = codec_of([key.get_secret_value() for key in settings.encryption])
    redaction = Redaction(settings.redact.marking) if settings.redact else NOTHING
    edge, elsewhere = (
        RedactingCodec(codec, redaction) if redaction else codec,
        Elsewhere(path) if path else None,
    )
    guard, background = guarded(url, settings.deadline, edge, elsewhere)
    calls = Recent(Metered(guard, meter), rounds=_rounds(url))
    return Stores(calls, guard, background, codec, redaction, elsewhere)


def guarded(url: str, deadline: float, codec: Codec, elsewhere: Elsewhere | None) -> tuple[Guard, Store]:
    """The store for calls, and for work in the background, which shuts it off for nobody.

    That waits where it must, by a way of its own to the same server. Anything else has one way: a driver from
    outside may keep all that it holds within this process.
    """
    opened = open_store(url, deadline=deadline, codec=codec, elsewhere=elsewhere)
    leisurely = open_store(url, deadline=LEISURE, codec=codec) if _is_server(url) else None
    return Guard(opened, deadline=deadline, leisurely=leisurely), leisurely or opened


def file_of(url: str) -> Path | None:
    """Where sessions are, if they are in a file."""
    return Path(url.removeprefix("sqlite:")) if url.startswith("sqlite:") else None


def _rounds(url: str) -> int:
    """After how many rounds of the loop a question to the store is on its way."""
    scheme = url.partition(":")[0]
    if scheme in {"sqlite", "memory"}:
        return 0
    # A task for whoever asks; with a pool, another for the command, and the moment in which it is written.
    return 1 if scheme.startswith("redis") and not scheme.endswith("+cluster") else 3


def _is_server(url: str) -> bool:
    scheme, _, _ = url.partition(":")
    return scheme.partition("+")[0] in {"redis", "rediss", "postgres", "postgresql"}
