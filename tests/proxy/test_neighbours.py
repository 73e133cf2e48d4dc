"""What one process tells the others arrives whole, or is not told."""

import asyncio
from typing import Any

import pytest

from proxy.neighbours import LARGEST, Forgotten, Looking, Neighbours, Note, inboxes

UNTOLD: dict[str, Any] = {
    "longer than a note": "s" * LARGEST,
    "longer than a socket takes": "s" * 10 * LARGEST,
    "a number too large": 10**40,
    "half a character": "\ud800",
}


def heard(said: bytes = b"", *notes: Note) -> tuple[list[Note], list[Any]]:
    """What arrives of some bytes and of notes, and what fails meanwhile."""
    arrived: list[Note] = []
    failed: list[Any] = []

    async def scene() -> None:
        among = inboxes(2)
        teller, listener = Neighbours(among, 0), Neighbours(among, 1)
        asyncio.get_running_loop().set_exception_handler(lambda _, fault: failed.append(fault))
        done = asyncio.Event()
        listener.listen(lambda note: done.set() if note == Looking() else arrived.append(note))
        if said:
            among[1][1].send(said)
        for note in (*notes, Looking()):
            teller.tell(note)
        await asyncio.wait_for(done.wait(), 5)
        asyncio.get_running_loop().remove_reader(among[1][0])
        for end in (end for inbox in among for end in inbox):
            end.close()

    asyncio.run(scene())
    return arrived, failed


@pytest.mark.parametrize("what", UNTOLD)
def test_what_fits_no_note_is_not_told_and_others_are(what):
    told = Forgotten("t", "s" * (LARGEST // 2), None)
    assert heard(b"", Forgotten("t", UNTOLD[what], None), told) == ([told], [])


@pytest.mark.parametrize("said", [b"\xc1", b"\x81\xa4type\xa5other"])
def test_what_is_no_note_is_passed_over(said):
    assert heard(said) == ([], [])
