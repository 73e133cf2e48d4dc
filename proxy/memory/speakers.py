"""The speakers of a session, and its transcript with their names."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec

from filters.injection import one_line
from filters.message import Message, newest_user
from proxy.memory.session import Deletion, Entry, Session, ShownFacts, message_of
from proxy.memory.wording import text_hash

NOBODY: Final = ""
"""The user of what was answered to words that are forgotten."""

_RESULTS: Final = frozenset({"tool", "function"})
_LONGEST_NAME: Final = 64
_LONGEST_LINE: Final = 1_000_000
_MAX_PROMPTS: Final = 16
_LONGEST_PROMPT: Final = 1000


def with_speakers(
    session: Session,
    user: str | None,
    window: Sequence[Message],
    facts: ShownFacts | None,
    *,
    by_message: bool = False,
) -> Session:
    """The session with who speaks, and with the facts that a model was shown of them.

    Its first request names the session's user; where the newest message alone does (``by_message``), it is
    the first user who is named in the window. What the newest message calls a user whom no message names is
    an alias.
    """
    if user not in {None, session.user}:
        last = newest_user(window)
        speaking = None if last is None else window[last].user
        if session.user is None and user:
            names = [m.user for m in window if m.role == "user" and m.user]
            owner = names[0] if by_message and speaking == user else user
            alias = speaking if user not in names else None
            session = msgspec.structs.replace(session, user=owner, alias=alias)
        elif speaking in {None, session.alias} and not session.shared:
            session = msgspec.structs.replace(session, shared=True)
    if facts is None or (session.shown_facts and facts.at <= session.shown_facts.at):
        return session
    return msgspec.structs.replace(session, shown_facts=facts)


def with_prompts(session: Session, prompts: Sequence[Message]) -> Session:
    """The session with the hashes of what the engine said by itself; the newest sixteen."""
    newest = [*dict.fromkeys(prompt.text for prompt in prompts)][-_MAX_PROMPTS:]
    hashes = dict.fromkeys(
        text_hash(text) for text in newest if text.strip() and len(text) <= _LONGEST_PROMPT
    )
    new = [one for one in hashes if one not in session.prompts]
    if not new:
        return session
    return msgspec.structs.replace(session, prompts=(*session.prompts, *new)[-_MAX_PROMPTS:])


def without_prompts(session: Session, history: Sequence[Message]) -> list[Message]:
    """A history without what the engine said by itself, unless a recorded answer says the same."""
    prompts = set(session.prompts)
    if prompts:
        prompts.difference_update(text_hash(e.generated) for e in session.entries if e.role == "assistant")
    return [m for m in history if not (prompts and m.role == "assistant" and text_hash(m.text) in prompts)]


def speaker(session: Session, entry: Entry) -> str | None:
    """The user who said it: as it or its request says, else the session's; ``None`` where that is shared."""
    name = entry.speaker
    if name not in {None, session.alias}:
        return name
    return None if session.shared else session.user


def speakers(session: Session, entries: Iterable[Entry]) -> Iterator[str]:
    """The users of entries, entry by entry, as far as they are known."""
    for entry in entries:
        if entry.role == "user" and not entry.is_injected:
            name = speaker(session, entry)
            if name:
                yield name


def call_speakers(session: Session, call: int) -> Iterator[str]:
    """The users of a call's summaries, and then of its entries, as far as they are known."""
    for segment in session.summaries:
        if segment.call == call:
            yield from segment.speakers
    yield from speakers(session, (entry for entry in session.entries if entry.call == call))


def speaker_names(session: Session, entries: Sequence[Entry]) -> list[str | None]:
    """For each entry the name of its user, as far as that is known, where several speak.

    Some engines tell speakers apart by their messages' names alone. A name here and there is no other user.
    """
    words = [e for e in (*entries, *session.entries) if e.role == "user" and not e.is_injected]
    users = {speaker(session, entry) for entry in words if not _has_only_name(entry)} - {None}
    names = {entry.name for entry in words if _has_only_name(entry)}
    if len(users) <= 1 and len(names) <= 1:
        return [None] * len(entries)
    owners: list[str | None] = []
    for entry in entries:
        if entry.role != "user" or entry.is_injected:
            owners.append(None)
        else:
            owners.append(entry.name if _has_only_name(entry) else speaker(session, entry))
    return owners


def with_speaker_names(session: Session, entries: Sequence[Entry]) -> list[Entry]:
    """The entries, each under the name of its user, where several speak; else as they are."""
    pairs = zip(entries, speaker_names(session, entries), strict=True)
    return [msgspec.structs.replace(entry, user=name) if name else entry for entry, name in pairs]


def other_users(session: Session, entries: Iterable[Entry]) -> list[str | None]:
    """For each entry the other user whose it is; ``None`` where it is the session's own user's.

    What a user said is that of the speaker. What was answered is of the last user before it in its turn, and
    a result goes with its call. ``entries`` are in order, and each turn whole.
    """
    own = {None, session.user, session.alias}
    unasked = None if session.deletion is None else NOBODY
    turn: tuple[int, int] | None = None
    owners: list[str | None] = []
    asking = calling = unasked
    # Whole sessions are gone through here, again and again: no properties.
    for entry in entries:
        if turn != (entry.call, entry.turn):
            turn, asking, calling = (entry.call, entry.turn), unasked, unasked
        if entry.role == "user":
            speaker = entry.asking_user or entry.user
            asking = None if speaker in own else speaker
        elif entry.role not in _RESULTS:
            calling = asking
        owners.append(calling if entry.role in _RESULTS else asking)
    return owners


def session_of_entries(user: str, entries: Sequence[Entry]) -> Session:
    """A user's session as far as its entries alone tell, with what the engine calls that user.

    The first to speak is the session's user: under another name, unless the own one is among the speakers.
    Words may have been forgotten, for all that the entries tell.
    """
    names = [entry.speaker for entry in entries if entry.role == "user" and not entry.is_injected]
    alias = names[0] if names and user not in names else None
    return Session(user=user, alias=alias, entries=tuple(entries), deletion=Deletion(at=0.0))


def label(role: str, name: str | None) -> str:
    """A role with a name behind it, on one line and without what would end it: ``user eve``."""
    shown = one_line((name or "").replace(":", " "), _LONGEST_NAME)
    return f"{role} {shown}" if shown else role


def transcript_lines(session: Session, entries: Sequence[Entry]) -> list[str]:
    """The talk in entries, a line each: ``user: Hello``, and of another user ``user eve: Hello``.

    Tool results are no talk, nor is what a program put in the user's place.
    """
    lines = []
    for entry, other in zip(entries, other_users(session, entries), strict=True):
        message = message_of(entry)
        if not entry.is_injected and message.role != "tool" and message.text.strip():
            name = label(message.role, other if entry.role == "user" else None)
            lines.append(f"{name}: {one_line(message.text, _LONGEST_LINE)}")
    return lines


def _has_only_name(entry: Entry) -> bool:
    return entry.user is None and bool(entry.name)
