"""Replays a recorded conversation: its prompts as another configuration would send them."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from filters.base import Snapshot
from filters.message import Message, newest_words
from proxy.answer.sse import decode_raw
from proxy.errors import NotFound, TurnkeeperError
from proxy.memory.archive.records import ArchivedMessage, Fact
from proxy.memory.errors import Unreadable
from proxy.memory.facts.prompt import prompt_facts
from proxy.memory.memory import Memory
from proxy.memory.session import START, Entry, Session, message_of
from proxy.memory.stores.store import Key, Owner
from proxy.memory.view import RequestView, SessionView, prompt_view
from proxy.trial.disclosure import shown_body
from proxy.trial.explain import run_filters
from proxy.turn import chain
from proxy.turn.identity import Identity
from proxy.turn.pipeline import Pipeline
from proxy.turn.request import ClientRequest
from proxy.turn.state import TurnContent
from proxy.upstream.providers import PROVIDERS, Provider

_PAGE: Final = 1000
_ANSWERED: Final = frozenset({"user", "tool", "function"})
_MODEL: Final = "the-model-of-the-request"
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class Recording(msgspec.Struct, frozen=True, kw_only=True):
    """A whole session with its cold part, and all facts about its user, expired ones included."""

    key: Key
    session: Session
    facts: tuple[Fact, ...] = ()


class Prompt(msgspec.Struct, frozen=True, kw_only=True):
    """The body for a model: its ``messages``, and its other ``parameters``.

    ``error`` is why nothing would be sent. ``degraded`` names the parts that were left out.
    """

    messages: Sequence[Mapping[str, Any]] = ()
    parameters: Mapping[str, Any] = {}
    degraded: tuple[str, ...] = ()
    error: str | None = None


class SentPrompt(msgspec.Struct, frozen=True):
    """The content of a kept turn, with the body that was sent, and the name of the provider that got it."""

    content: TurnContent
    provider: str


class ReplayedTurn(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt of a recorded conversation, before and after a change of the configuration.

    ``number`` counts the prompts of the conversation from 1, and ``at`` is in seconds since 1970. ``before``
    is the prompt that was ``sent``, or the one of the ``present`` configuration, as ``against`` says.
    ``window`` are the messages of the request.
    """

    number: int
    call: int
    at: float
    words: str
    against: Literal["sent", "present"]
    before: Prompt
    after: Prompt
    user: str | None
    window: Sequence[Message]

    @property
    def changed(self) -> bool:
        """Whether the prompts before and after differ."""
        one, other = self.before, self.after
        return (one.messages, one.parameters, one.error) != (other.messages, other.parameters, other.error)


async def read_recording(memory: Memory, key: Key) -> Recording:
    """Reads a session from its store, else the newest session of that name from the archive.

    Raises NotFound for a session that is in neither, TurnkeeperError for an unreadable one, and StoreError.
    """
    try:
        session = await memory.store.session(key)
    except Unreadable:
        raise TurnkeeperError(f"The stored session '{key.session}' cannot be read.") from None
    if session is not None:
        entries = await memory.store.entries(key, session)
        session = msgspec.structs.replace(session, entries=entries, cold_count=0)
    else:
        messages = list[ArchivedMessage]()
        while memory.archiving:
            page = await memory.archiving.archive.session_turns(key, start=len(messages), limit=_PAGE)
            messages += page
            if len(page) < _PAGE:
                break
        if not messages:
            raise NotFound(f"There is no conversation '{key.session}', neither stored nor in the archive.")
        created = messages[-1].created
        entries = tuple(message.entry for message in messages if message.created == created)
        speakers = (entry.speaker for entry in entries if entry.role == "user" and entry.speaker)
        session = Session(entries=entries, user=next(speakers, None), created=created)
    facts: Sequence[Fact] = ()
    if memory.archiving and session.user:
        facts = await memory.archiving.archive.facts(
            Owner(key.tenant, session.user), now=0.0, superseded=True
        )
    return Recording(key=key, session=session, facts=tuple(facts))


def replay(
    recording: Recording,
    pipeline: Pipeline,
    present: Pipeline,
    *,
    sent: Sequence[SentPrompt] = (),
    window: int | None = None,
) -> Iterator[ReplayedTurn]:
    """Yields the prompts of a recording as ``pipeline`` would send them, the oldest first.

    A prompt is compared with the prompt that was ``sent``, if that was kept, else with the prompt of the
    ``present`` pipeline. The request of a turn that was not kept consists of the last ``window`` messages of
    its call, or of all of them; its system messages and parameters are unknown. Memory is as it was then,
    with earlier turns, summaries and facts. Only kept turns have passages from other calls, and episodes.
    """
    prompts = [(one.content, one.content.marked_request, PROVIDERS[one.provider]) for one in sent]
    for number, end in enumerate(_request_ends(recording.session.entries), 1):
        newest = recording.session.entries[end - 1]
        of_call = [entry for entry in recording.session.entries[:end] if entry.call == newest.call]
        messages = [message_of(entry) for entry in of_call[-(window or 0) :]]
        words = newest_words(messages)
        match = next(
            (i for i, (_, marked, _) in enumerate(prompts) if newest_words(marked.messages) == words), None
        )
        if match is not None:
            content, request, provider = prompts[match]
            del prompts[: match + 1]
            user, messages, at = content.identity.user, [*request.messages], content.now
            before = _prompt(content.sent_body, provider)
            after = _run(request, content.identity, pipeline, at, content.memory)
        else:
            at, user = newest.at, newest.speaker or recording.session.user
            identity = Identity(recording.key.tenant, recording.key.session, user, background=False)
            session = _session_before(recording.session, end, at)
            view = RequestView(messages, at=at).view_of(session)
            before, after = (_replayed(view, recording.facts, identity, each) for each in (present, pipeline))
        yield ReplayedTurn(
            number=number,
            call=newest.call + 1,
            at=at,
            words=words,
            against="present" if match is None else "sent",
            before=before,
            after=after,
            user=user,
            window=messages,
        )


def _request_ends(entries: Sequence[Entry]) -> Iterator[int]:
    """Yields the number, from 1, of each request's last entry: a user's words or a tool's result."""
    for i, entry in enumerate(entries, 1):
        following = entries[i] if i < len(entries) else None
        if entry.role in _ANSWERED and (
            following is None or following.role == "assistant" or following.call != entry.call
        ):
            yield i


def _replayed(view: SessionView, facts: Sequence[Fact], identity: Identity, pipeline: Pipeline) -> Prompt:
    session, now = view.session, view.at
    prompt = prompt_view(view, pipeline.chain_needs)
    memory = prompt.snapshot
    if pipeline.max_facts and identity.user == session.user and identity.user is not None:
        current = [
            fact
            for fact in facts
            if fact.created <= now
            and (fact.expires is None or fact.expires > now)
            and (fact.superseded is None or fact.superseded > now)
        ]
        limit = pipeline.max_facts
        chosen = prompt_facts(session, prompt.epoch, identity.user, current, limit=limit, now=now)
        memory = msgspec.structs.replace(memory, facts=chosen.facts)
    fields = {"model": msgspec.Raw(msgspec.json.encode(session.model or _MODEL))}
    request = ClientRequest(headers={}, query={}, fields=fields, messages=prompt.window)
    return _run(request, identity, pipeline, now, memory)


def _session_before(session: Session, end: int, now: float) -> Session:
    """Returns the session before the request that ends with entry ``end``, whose words are left out."""
    entries = session.entries[:end]
    start = next((i for i in range(end, 0, -1) if entries[i - 1].role not in _ANSWERED), 0)
    entries = entries[:start]
    last = entries[-1].turn_ref if entries else START
    call = session.entries[end - 1].call
    summaries = [each for each in session.summaries if each.created_at <= now and each.end <= last]
    return Session(
        entries=entries,
        call=last.call,
        next_turn=last.turn + 1,
        user=session.user,
        started=next(
            (e.timestamp for e in session.entries if e.call == call and e.timestamp is not None), None
        ),
        created=session.created,
        updated=entries[-1].recorded_at if entries else 0.0,
        state=session.state,
        summaries=tuple(summaries),
        model=session.model,
        scale=session.scale,
    )


def _run(
    request: ClientRequest, identity: Identity, pipeline: Pipeline, now: float, memory: Snapshot
) -> Prompt:
    try:
        run = run_filters(request, identity, pipeline, now, memory)
        if request.messages and not run.messages:
            raise chain.no_messages_left(pipeline.filters, request.messages, run.context)
    except TurnkeeperError as error:
        return Prompt(error=error.message)
    return _prompt(run.sent, pipeline.targets[0].provider, run.degraded)


def _prompt(body: bytes, provider: Provider, degraded: tuple[str, ...] = ()) -> Prompt:
    fields = _fields(body)
    messages: Any = decode_raw(fields["messages"])
    shown = shown_body(fields, messages, provider)
    return Prompt(
        messages=shown.pop("messages"),
        parameters={name: decode_raw(value) for name, value in shown.items()},
        degraded=degraded,
    )
