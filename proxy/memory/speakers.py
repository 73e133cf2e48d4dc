"""The speakers of a session, and its transcript with their names."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec

from filters.injection import one_line
from filters.message import Message, newest_user
from proxy.memory.session import Deletion, Entry, Session, ShownFacts, message_of
from proxy.memory.wording import text_hash

NOBODY: Final = ""
"""The owner of answers to deleted words."""

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
    """Returns the session with its user, alias and the facts in the prompt, as a request has them.

    The user is that of the session's first request, or the first user named in the window if only the newest
    message names one (``by_message``). If no message has the request's user, the newest message's user is its
    alias. A request of another user whose newest message names none makes the session ``shared``.
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
    """Adds the hashes of a voice platform's own messages to a session, which has the newest sixteen."""
    newest = [*dict.fromkeys(prompt.text for prompt in prompts)][-_MAX_PROMPTS:]
    hashes = dict.fromkeys(
        text_hash(text) for text in newest if text.strip() and len(text) <= _LONGEST_PROMPT
    )
    new = [one for one in hashes if one not in session.prompts]
    if not new:
        return session
    return msgspec.structs.replace(session, prompts=(*session.prompts, *new)[-_MAX_PROMPTS:])


def without_prompts(session: Session, history: Sequence[Message]) -> list[Message]:
    """Returns a history without the platform's own messages, unless a recorded answer has the same words."""
    prompts = set(session.prompts)
    if prompts:
        prompts.difference_update(text_hash(e.generated) for e in session.entries if e.role == "assistant")
    return [m for m in history if not (prompts and m.role == "assistant" and text_hash(m.text) in prompts)]


def speaker(session: Session, entry: Entry) -> str | None:
    """Returns the user who said an entry: its own, else the session's unless that is shared."""
    name = entry.speaker
    if name not in {None, session.alias}:
        return name
    return None if session.shared else session.user


def speakers(session: Session, entries: Iterable[Entry]) -> Iterator[str]:
    """Yields the known users of entries, entry by entry."""
    for entry in entries:
        if entry.role == "user" and not entry.is_injected:
            name = speaker(session, entry)
            if name:
                yield name


def users_of(session: Session, entries: Iterable[Entry]) -> set[str]:
    """The users of whom a session stores anything; ``entries`` are all of its entries."""
    # No properties, for speed: this runs on whole sessions, at each write.
    users = {entry.asking_user or entry.user or "" for entry in entries}
    users.add(session.user or "")
    for segment in session.summaries:
        users.update(segment.speakers)
    if facts := session.shown_facts:
        users.add(facts.user)
    if shown := session.shown_call:
        users.update((shown.user, *shown.speakers))
    users.discard("")
    return users


def call_speakers(session: Session, call: int) -> Iterator[str]:
    """Yields the known users of a call's summaries, and then of its entries."""
    for segment in session.summaries:
        if segment.call == call:
            yield from segment.speakers
    yield from speakers(session, (entry for entry in session.entries if entry.call == call))


def speaker_names(session: Session, entries: Sequence[Entry]) -> list[str | None]:
    """Returns for each entry the name of its user if several users speak and the name is known.

    Some voice platforms distinguish speakers only by the messages' names. A single name is not another user.
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
    """Returns the entries with the names of their users if several speak, else unchanged."""
    pairs = zip(entries, speaker_names(session, entries), strict=True)
    return [msgspec.structs.replace(entry, user=name) if name else entry for entry, name in pairs]


def other_users(session: Session, entries: Iterable[Entry]) -> list[str | None]:
    """Returns for each entry its owner if that is not the session's user, else ``None``.

    Words belong to their speaker, an answer to the last user before it in its turn, and a result to the owner
    of its call. ``entries`` are in order, with whole turns.
    """
    users = {None, session.user, session.alias}
    unasked = None if session.deletion is None else NOBODY
    turn: tuple[int, int] | None = None
    owners: list[str | None] = []
    asking = calling = unasked
    # No properties, for speed: this often runs on whole sessions.
    for entry in entries:
        if turn != (entry.call, entry.turn):
            turn, asking, calling = (entry.call, entry.turn), unasked, unasked
        if entry.role == "user":
            speaker = entry.asking_user or entry.user
            asking = None if speaker in users else speaker
        elif entry.role not in _RESULTS:
            calling = asking
        owners.append(calling if entry.role in _RESULTS else asking)
    return owners


def session_of_entries(user: str, entries: Sequence[Entry]) -> Session:
    """Returns a user's session made of its entries alone, with the voice platform's name for the user.

    The first speaker is the session's user; if the user's name is not among the speakers, the first speaker's
    name is the alias. Words may have been deleted, which the entries do not show.
    """
    names = [entry.speaker for entry in entries if entry.role == "user" and not entry.is_injected]
    alias = names[0] if names and user not in names else None
    return Session(user=user, alias=alias, entries=tuple(entries), deletion=Deletion(at=0.0))


def label(role: str, name: str | None) -> str:
    """Returns a role followed by a name, on one line and without colons: ``user eve``."""
    shown = one_line((name or "").replace(":", " "), _LONGEST_NAME)
    return f"{role} {shown}" if shown else role


def transcript_lines(session: Session, entries: Sequence[Entry]) -> list[str]:
    """Returns one line per entry: ``user: Hello``, or ``user eve: Hello`` for another user.

    Tool results, and messages that a program injected, are left out.
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
