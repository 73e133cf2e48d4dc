from importlib.util import find_spec
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from filters.number import Whole
from proxy.configuration.advice import advising
from proxy.configuration.part import Part
from proxy.configuration.value import Duration, UpstreamName

Place = Literal["archive", "mem0"]


def _there(place: Place) -> Place:
    if place == "mem0" and find_spec("mem0") is None:
        raise ValueError("Mem0 is not installed; install turnkeeper[mem0]")
    return place


class Facts(Part):
    """Who finds out what there is to be known of a caller, and how much is kept."""

    upstream: UpstreamName
    """The upstream that is asked; with ``practice:`` nothing is found out."""
    model: str = ""
    """The model's name; empty takes what the session last used."""
    fallback: str = ""
    """The model that is asked when the first one fails; empty asks none."""
    max: Annotated[Whole, Field(ge=1, le=1000)] = 100
    """How many facts are known of a person at the most; beyond it the least important go."""
    store: Annotated[Place, AfterValidator(advising(_there))] = "archive"
    """Where facts are kept: in the archive, or in Mem0, whose library is installed beside."""
    mem0: dict[str, Any] = Field(default_factory=dict)
    """Mem0's own options, as its ``Memory.from_config`` takes them."""
    pause: Duration = 20.0
    """How long nothing is said until what was said is looked at."""
    timeout: Duration = 60.0
    """How long one answer may take."""
