"""What the model is asked, before it is put in the words of one upstream."""

from collections.abc import Mapping

import msgspec

from filters.base import Fields, Messages
from proxy import kinds
from proxy.errors import RequestError
from proxy.target import Target
from proxy.tools.dialogue import Tools
from proxy.turn.identity import decoded
from proxy.upstream import Headers


class Request(msgspec.Struct, frozen=True):
    """What one upstream is sent; ``model`` is what it is asked for."""

    headers: Headers
    body: bytes
    model: str


class Question(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The filtered call. ``headers`` are the client's, in lower case.

    ``model`` is what the pipeline has every upstream asked for, if it names one.
    """

    model: str | None
    headers: Mapping[str, str]
    fields: Fields
    messages: Messages
    streaming: bool
    tools: Tools | None = None

    def to(self, target: Target) -> Request:
        """The request as an upstream takes it; RequestError where nobody named a model."""
        chosen = self.model or target.model
        asked = chosen or decoded(self.fields.get("model"))
        if not asked:
            raise RequestError("'model' is missing; name a model, or set UPSTREAM_MODEL.", param="model")
        body = kinds.compose(target.kind, self.fields, self.messages, model=chosen, allow=target.allow)
        return Request(_headers(target, self.headers), body, asked if isinstance(asked, str) else "")

    def followed_by(self, said: Messages, *, last: bool) -> "Question":
        """The question with more messages behind; in the ``last`` one no tool of ours can be called."""
        fields = self.tools.offer.last if self.tools and last else self.fields
        return msgspec.structs.replace(self, fields=fields, messages=[*self.messages, *said])

    def names_model(self, target: Target) -> bool:
        """Whether anybody has named a model for this upstream."""
        return bool(self.model or target.model or decoded(self.fields.get("model")))


def _headers(target: Target, given: Mapping[str, str]) -> Headers:
    own = list(target.headers)
    wanted = (*target.forward_headers, "authorization") if target.forward_key else target.forward_headers
    sent = ((name, given.get(name)) for name in wanted)
    own.extend((name.encode("latin-1"), value.encode("latin-1")) for name, value in sent if value)
    return own
