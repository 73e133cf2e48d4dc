"""The filtered chat request, and the request that one upstream gets of it."""

from collections.abc import Mapping

import msgspec

from filters.base import Fields, Messages
from proxy.answer.response import Headers
from proxy.errors import RequestError
from proxy.tools.dialogue import Tools
from proxy.upstream.body import compose
from proxy.upstream.target import Target


class UpstreamRequest(msgspec.Struct, frozen=True):
    """What one upstream is sent; ``model`` is the model that it names."""

    headers: Headers
    body: bytes
    model: str


class ChatRequest(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A chat request behind the filters. ``headers`` are the client's, their names in lower case.

    ``model`` is the model that the pipeline sets for every upstream, if it sets one.
    """

    model: str | None
    headers: Mapping[str, str]
    fields: Fields
    messages: Messages
    streaming: bool
    tools: Tools | None = None

    def to(self, target: Target) -> UpstreamRequest:
        """The request in the form that a target takes; raises RequestError where no model is named."""
        model = self.model or target.model
        name = model or self._client_model
        if not name:
            raise RequestError("'model' is missing; name a model, or set UPSTREAM_MODEL.", param="model")
        forwarded = target.forward_headers
        if target.forward_key:
            forwarded = (*forwarded, "authorization")
        headers = target.headers
        for header in forwarded:
            if value := self.headers.get(header):
                headers = [*headers, (header.encode("latin-1"), value.encode("latin-1"))]
        body = compose(target.provider, self.fields, self.messages, model=model, allow=target.allow)
        return UpstreamRequest(headers, body, name if isinstance(name, str) else "")

    def extended(self, messages: Messages, *, last: bool) -> "ChatRequest":
        """The request with more messages behind; in the ``last`` one the proxy's tools are not offered."""
        fields = self.tools.offer.final_fields if self.tools and last else self.fields
        return msgspec.structs.replace(self, fields=fields, messages=[*self.messages, *messages])

    def names_model(self, target: Target) -> bool:
        """Whether a model is named for this target."""
        return bool(self.model or target.model or self._client_model)

    @property
    def _client_model(self) -> object:
        """The model that the client names; ``None`` where it names none that can be read."""
        try:
            return msgspec.json.decode(self.fields["model"]) if "model" in self.fields else None
        except (msgspec.DecodeError, ValueError, RecursionError):
            return None
