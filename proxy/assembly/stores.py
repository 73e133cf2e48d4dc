"""Where sessions are kept, as an address says, and what they pass on their way there."""

from pathlib import Path

from proxy.memory.codec import Codec
from proxy.memory.guard import Guard
from proxy.memory.open import open_store
from proxy.memory.redaction.redacting import Redacting
from proxy.memory.redaction.redaction import Redaction
from proxy.memory.sql.elsewhere import Elsewhere
from proxy.memory.store import LEISURE, Store


def guarded(url: str, deadline: float, codec: Codec, elsewhere: Elsewhere | None) -> tuple[Guard, Store]:
    """The store for calls, and for work in the background, which shuts it off for nobody.

    That waits where it must, by a way of its own to the same server. Anything else has one way: a driver from
    outside may keep all that it holds within this process.
    """
    opened = open_store(url, deadline=deadline, codec=codec, elsewhere=elsewhere)
    leisurely = open_store(url, deadline=LEISURE, codec=codec) if _is_server(url) else None
    return Guard(opened, deadline=deadline, leisurely=leisurely), leisurely or opened


def edge(codec: Codec, redaction: Redaction) -> Codec:
    """What all of a session passes on its way into its store."""
    return Redacting(codec, redaction) if redaction else codec


def file_of(url: str) -> Path | None:
    """Where sessions are, if they are in a file."""
    return Path(url.removeprefix("sqlite:")) if url.startswith("sqlite:") else None


def rounds(url: str) -> int:
    """After how many rounds of the loop a question to the store is on its way."""
    scheme = url.partition(":")[0]
    if scheme in {"sqlite", "memory"}:
        return 0
    # A task for whoever asks; with a pool, another for the command, and the moment in which it is written.
    return 1 if scheme.startswith("redis") and not scheme.endswith("+cluster") else 3


def _is_server(url: str) -> bool:
    scheme, _, _ = url.partition(":")
    return scheme.partition("+")[0] in {"redis", "rediss", "postgres", "postgresql"}


def elsewhere_of(url: str) -> Elsewhere | None:
    """Who else writes to the sessions' file, if they are in one."""
    path = file_of(url)
    return Elsewhere(path) if path else None
