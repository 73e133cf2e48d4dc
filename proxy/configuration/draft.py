"""The filters of one pipeline, as somebody writes them who may try filters and nothing else."""

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field, ValidationError

from proxy.configuration import sequence
from proxy.configuration.document import Document, Flaw, NotADocument, decode, parse
from proxy.configuration.fault import Fault, dotted
from proxy.configuration.load import flaw
from proxy.configuration.part import Part
from proxy.configuration.shelf import Shelf
from proxy.configuration.value import AnswerStep, RequestStep, Surroundings

_NAME = "pipeline"
_SIDES = ("request", "answer")
_MOST_BYTES = 32 * 1024
_MOST_STEPS = 50


class Draft(Part):
    """What may be written: steps, and nothing that leads out of them."""

    request: Annotated[tuple[RequestStep, ...], Field(max_length=_MOST_STEPS)] = ()
    """The filters between the client's request and the model, in the order in which they run."""
    answer: Annotated[tuple[AnswerStep, ...], Field(max_length=_MOST_STEPS)] = ()
    """The filters between the model's answer and the client, in the order in which they run."""


def read(text: str, shelf: Shelf) -> Draft | list[Fault]:
    """The draft in a text, or all that is wrong with it, in the order of its lines.

    The check is that of a whole configuration, but nothing is read from the environment or from files: a
    ``$`` is a ``$``. Only filters of the shelf are known.
    """
    try:
        document = _parsed(text)
    except NotADocument as error:
        return [Fault(_NAME, error.line, dotted(()), str(error))]
    flaws = list(document.flaws)
    try:
        found = Draft.model_validate(document.value, context=Surroundings(shelf))
    except ValidationError as error:
        wrong = [
            flaw(each, document, document.value, shelf, Draft) for each in error.errors(include_url=False)
        ]
        known = {each.place for each in flaws}
        flaws += [each for each in wrong if each.place not in known]
    told = [Fault(_NAME, each.line, dotted(each.place), each.message) for each in sorted(flaws, key=_line)]
    return told or found


def doubts(text: str, draft: Draft) -> Sequence[Fault]:
    """What a sound draft says and cannot mean."""
    document = _parsed(text)
    return [
        Fault(_NAME, document.line(("request", i)), dotted(("request", i)), message)
        for i, message in sequence.findings(draft.request)
    ]


def _parsed(text: str) -> Document:
    data = text.encode("utf-8", "surrogatepass")
    if len(data) > _MOST_BYTES:
        raise NotADocument(f"a pipeline to be tried has at most {_MOST_BYTES // 1024} KiB")
    written = decode(data)
    return parse(written, _SIDES) if _says_anything(written) else Document({}, {}, [])


def _says_anything(text: str) -> bool:
    return any(line.strip() and not line.strip().startswith("#") for line in text.splitlines())


def _line(each: Flaw) -> int:
    return each.line
