"""From an address to an archive: the scheme names the database."""

from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Final

from proxy.memory.archive.database import Database
from proxy.memory.archive.dialect import POSTGRES, SQLITE
from proxy.memory.archive.latest import Latest
from proxy.memory.archive.lexicon import Lexicon
from proxy.memory.archive.shelf import Shelf
from proxy.memory.archive.sql import Archive
from proxy.memory.redaction.redaction import NOTHING, Redaction
from proxy.memory.stores.codec import Codec
from proxy.memory.stores.sqlite_file import Elsewhere

SCHEMES: Final = ("sqlite", "postgresql", "postgres")
_GROUP: Final = "turnkeeper.archives"
_POSTGRES: Final = EntryPoint("postgresql", "proxy.memory.archive.postgres:PostgresDatabase", _GROUP)
_SQLITE: Final = EntryPoint("sqlite", "proxy.memory.archive.sqlite:SqliteDatabase", _GROUP)


def is_archive(url: str) -> bool:
    """Whether an archive can be kept at an address of sessions."""
    return url.partition(":")[0] in SCHEMES and url != "sqlite::memory:"


def open_archive(
    url: str, *, codec: Codec, elsewhere: Elsewhere | None = None, redaction: Redaction = NOTHING
) -> Archive:
    """The archive at an address; nothing is connected yet.

    ``elsewhere`` is that of the sessions in the same file, and ``redaction`` what is never kept. Raises
    ValueError for an address that names none, without the address: it may hold a password.
    """
    dialect = SQLITE if _is_file(url) else POSTGRES
    shelf = Shelf(codec, Lexicon(codec.derived(b"index")), dialect, redaction)
    return Archive(_database(url, elsewhere), shelf, Latest(elsewhere))


def _database(url: str, elsewhere: Elsewhere | None) -> Database:
    if not is_archive(url):
        raise ValueError("no archive is addressed like this; write sqlite:PATH or postgresql://…")
    if _is_file(url):
        path = url.removeprefix("sqlite:")
        if not path or path.startswith("//") or "\0" in path:
            raise ValueError("write sqlite:PATH, such as sqlite:archive.db or sqlite:/data/archive.db")
        sqlite: Database = _SQLITE.load()(Path(path), elsewhere)
        return sqlite
    try:
        postgres: Database = _POSTGRES.load()(url)
    except ModuleNotFoundError as error:
        raise ValueError(
            f"postgresql: needs the module {error.name}; install turnkeeper[postgres]"
        ) from error
    return postgres


def _is_file(url: str) -> bool:
    return url.startswith("sqlite:")
