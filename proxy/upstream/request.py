"""What the model is asked, before it is put in the words of one upstream."""

from collections.abc import Mapping, Sequence

import msgspec

from filters.base import Fields, Messages
from proxy.answer.response import Headers, Response
from proxy.errors import RequestError
from proxy.tools.dialogue import Dialogue, Tools
from proxy.upstream.body import compose
from proxy.upstream.target import Target


class UpstreamRequest(msgspec.Struct, frozen=True):
    """What one upstream is sent; ``model`` is what it is asked for."""

    headers: Headers
    body: bytes
    model: str


class ChatRequest(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The filtered call. ``headers`` are the client's, in lower case.

    ``model`` is what the pipeline has every upstream asked for, if it names one.
    """

    model: str | None
    headers: Mapping[str, str]
    fields: Fields
    messages: Messages
    streaming: bool
    tools: Tools | None = None

    def to(self, target: Target) -> UpstreamRequest:
        """The request as an upstream takes it; RequestError where nobody named a model."""
        chosen = self.model or target.model
        asked = chosen or self._client_model
        if not asked:
            raise RequestError("'model' is missing; name a model, or set UPSTREAM_MODEL.", param="model")
        body = compose(target.provider, self.fields, self.messages, model=chosen, allow=target.allow)
        return UpstreamRequest(_headers(target, self.headers), body, asked if isinstance(asked, str) else "")

    def extended(self, said: Messages, *, last: bool) -> "ChatRequest":
        """The question with more messages behind; in the ``last`` one no tool of ours can be called."""
        fields = self.tools.offer.final_fields if self.tools and last else self.fields
        return msgspec.structs.replace(self, fields=fields, messages=[*self.messages, *said])

    def names_model(self, target: Target) -> bool:
        """Whether anybody has named a model for this upstream."""
        return bool(self.model or target.model or self._client_model)

    @property
    def _client_model(self) -> object:
        """The model that the client names; ``None`` where it names none that can be read."""
        try:
            return msgspec.json.decode(self.fields["model"]) if "model" in self.fields else None
        except (msgspec.DecodeError, ValueError, RecursionError):
            return None


def _headers(target: Target, given: Mapping[str, str]) -> Headers:
    own = list(target.headers)
    wanted = (*target.forward_headers, "authorization") if target.forward_key else target.forward_headers
    sent = ((name, given.get(name)) for name in wanted)
    own.extend((name.encode("latin-1"), value.encode("latin-1")) for name, value in sent if value)
    return own


class Course:
    """The question of one turn, and behind it what tools of ours were called for by now.

    ``targets`` are who may be asked, the preferred one first. ``dialogue`` is ``None`` where the model has no
    tools of ours.
    """

    def __init__(self, question: ChatRequest, targets: Sequence[Target]) -> None:
        self.targets = targets
        self.dialogue = Dialogue(question.tools) if question.tools else None
        self._question = question

    @property
    def rounds(self) -> int:
        """How often tools were carried out, and the model was to go on."""
        return self.dialogue.rounds if self.dialogue else 0

    def names_model(self, target: Target) -> bool:
        """Whether anybody has named a model for this upstream."""
        return self._question.names_model(target)

    def to(self, target: Target) -> UpstreamRequest:
        """The request as an upstream takes it; RequestError where nobody named a model."""
        question = self._question
        if self.dialogue and self.dialogue.rounds:
            question = question.extended(self.dialogue.messages, last=self.dialogue.is_last_round)
        return question.to(target)

    def leave_to(self, response: Response) -> None:
        """The client gets this answer: for no other are tools carried out any more."""
        if self.dialogue:
            self.dialogue.assign_to(response)
