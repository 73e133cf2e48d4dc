from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from filters.number import Whole
from proxy.configuration.advice import advising
from proxy.configuration.case import Case
from proxy.configuration.part import Part
from proxy.configuration.settings.identity import Identity
from proxy.configuration.value import AnswerStep, Duration, RequestStep, UpstreamName, at_least_one

Tool = Literal["memory_store", "memory_recall", "memory_forget"]


class Pipeline(Part):
    """What happens to a request on its way to the model."""

    upstreams: Annotated[tuple[UpstreamName, ...], AfterValidator(advising(at_least_one))] = Field(
        json_schema_extra={"minItems": 1}
    )
    """Names of upstreams; each further one is asked when those before it fail."""
    model: str = ""
    """The model's name; empty takes the upstream's, else the request's."""
    first_token: Duration | None = None
    """How long all upstreams together may take to say anything; left out, the sum of what each may take."""
    hedge: Duration | None = None
    """When the first delta is so late, the next upstream is asked as well; off unless set."""
    keep_alive: Duration | None = None
    """How long a stream may be silent before a comment is sent; off unless set."""
    identity: Identity = Identity()
    """Where session and user are named, in place of the usual places of each dialect."""
    request: tuple[RequestStep, ...] = ()
    """The filters between the client's request and the model, in the order in which they run."""
    failing: Literal["refuse", "skip"] = "refuse"
    """A request filter that raises an error: the turn is refused, or goes on without it and says so."""
    tools: tuple[Tool, ...] = ()
    """Memory tools that the model may call; the proxy carries them out within the answer."""
    tool_rounds: Annotated[Whole, Field(ge=1, le=10)] = 4
    """How often the model is asked again in one answer, after its calls have been carried out."""
    answer: tuple[AnswerStep, ...] = ()
    """The filters between the model's answer and the client, in the order in which they run."""
    tests: tuple[Case, ...] = ()
    """What must become of some requests; ``turnkeeper test`` tries it, and serving does not look at it."""
