"""Forgetting a user covers every place of the registry, whichever of them fails."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from proxy.memory.errors import StoreError
from proxy.memory.privacy import PrivacyRegistry, SessionHolder
from proxy.memory.session import Entry, Session, encode
from proxy.memory.stores.codec import Plain
from proxy.memory.stores.drivers import open_store
from proxy.memory.stores.store import BlobWrite, Key, Owner

pytestmark = pytest.mark.anyio
KEY, ANN = Key("acme", "call"), Owner("acme", "ann")


class Unscrubbed:
    """A place that has removed its data and cannot clean its files."""

    async def export(self, person: Owner) -> Mapping[str, Sequence[Any]]:
        return {}

    async def forget(self, person: Owner, *, at: float) -> Mapping[str, int]:
        return {"facts": 1}

    async def forget_session(self, key: Key, *, at: float) -> Mapping[str, int]:
        return {"facts": 1}

    async def scrub(self) -> None:
        raise StoreError("too slow")


class Holder(Unscrubbed):
    """A place with one fact."""

    def __init__(self, fact: str) -> None:
        self._fact = fact

    async def export(self, person: Owner) -> Mapping[str, Sequence[Any]]:
        return {"facts": [self._fact]}


async def test_an_export_has_what_each_of_several_places_holds() -> None:
    people = PrivacyRegistry((Holder("Likes jazz."), Unscrubbed(), Holder("Has a dog.")))
    found = {"user": "ann", "sessions": [], "turns": [], "facts": ["Likes jazz.", "Has a dog."]}
    assert await people.export(ANN) == found


@pytest.mark.parametrize("session", [False, True])
async def test_a_place_that_cannot_be_scrubbed_holds_up_no_other(tmp_path: Path, session: bool):
    path = tmp_path / "s.db"
    store = open_store(f"sqlite:{path}", deadline=1, codec=Plain())
    words = Entry(role="user", turn=0, content="My scarecrow is called Ferdinand.")
    await store.write(KEY, BlobWrite(encode(Session(entries=(words,), user="ann")), version=0, ttl=60))
    people = PrivacyRegistry((Unscrubbed(), SessionHolder(store, file=path)))
    with pytest.raises(StoreError, match="too slow"):
        await (people.forget_session("acme", "call") if session else people.forget(ANN))
    left = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    await store.aclose()
    assert b"Ferdinand" not in left
