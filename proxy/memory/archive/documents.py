"""Documents in the archive."""

from collections.abc import Sequence

from proxy.memory.archive.archive import Chunk
from proxy.memory.archive.shelf import Line, Shelf
from proxy.memory.archive.statements import DOCUMENT, DOCUMENTS, NO_DOCUMENT, NO_DOCUMENT_PASSAGES, PUT_CHUNK
from proxy.memory.archive.steps import Steps, asked, first, owner_for
from proxy.memory.stores.sql import id_bytes, id_text
from proxy.memory.stores.store import Key, Owner


def add_document(shelf: Shelf, tenant: str, path: str, chunks: Sequence[Chunk], *, at: float) -> Steps[None]:
    """As the archive's ``add_document``."""
    yield from remove_document(tenant, path)
    whose = Owner(tenant)
    owner = yield from owner_for(whose)
    place = {"tenant": id_bytes(tenant), "path": id_bytes(path)}
    for number, chunk in enumerate(chunks):
        blob = shelf.sealed(Key(tenant, path), chunk)
        item = yield from first(PUT_CHUNK, {**place, "chunk": number, "at": at, "blob": blob})
        text = f"{chunk.title}\n{chunk.text}"
        yield from shelf.indexed(whose, owner, text, Line(DOCUMENT, item, at))


def documents(tenant: str) -> Steps[list[str]]:
    """As the archive's ``documents``."""
    rows = yield from asked(DOCUMENTS, {"tenant": id_bytes(tenant)})
    return [id_text(path) for (path,) in rows]


def remove_document(tenant: str, path: str) -> Steps[bool]:
    """As the archive's ``remove_document``."""
    place = {"tenant": id_bytes(tenant), "path": id_bytes(path)}
    yield from asked(NO_DOCUMENT_PASSAGES, place)
    rows = yield from asked(NO_DOCUMENT, place)
    return bool(rows)
