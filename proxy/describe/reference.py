"""Pages about filters, as Markdown."""

import re
from collections.abc import Iterable, Iterator, Sequence
from difflib import SequenceMatcher

from proxy.describe.pages import FilterPage, Option, ShownExample

_TITLES = {"request": "Request filters", "answer": "Answer filters"}
_WHAT = {
    "request": "They stand under a pipeline's `request:`, between the client's request and the model.",
    "answer": "They stand under a pipeline's `answer:`, between the model's answer and the client.",
}


def filters_reference(pages: Sequence[FilterPage]) -> str:
    """All pages as one document, with an index."""
    lines = ["# Filters", "", "<!-- Made by `make docs` from the filters themselves. -->", ""]
    anchors = _anchors(pages)
    for side, title in _TITLES.items():
        of_side = [each for each in pages if each.side == side]
        lines += [f"**{title}.** {_WHAT[side]}", "", *_index(of_side, anchors)] if of_side else []
    for each in pages:
        lines += [*_lines(each, "##"), ""]
    return "\n".join(lines)


def filter_reference(shown: FilterPage) -> str:
    """One page as a document of its own."""
    return "\n".join(_lines(shown, "#")) + "\n"


def _anchors(pages: Iterable[FilterPage]) -> dict[FilterPage, str]:
    """Where a link leads; the second heading of a name gets a number."""
    anchors: dict[FilterPage, str] = {}
    for each in pages:
        anchors[each] = f"{each.name}-1" if each.name in anchors.values() else each.name
    return anchors


def _index(pages: Iterable[FilterPage], anchors: dict[FilterPage, str]) -> Iterator[str]:
    yield from ["| filter | what it does |", "|---|---|"]
    for each in pages:
        yield f"| [`{each.name}`](#{anchors[each]}) | {_cell(each.summary)} |"
    yield ""


def _lines(shown: FilterPage, heading: str) -> Iterator[str]:
    yield from [f"{heading} {shown.name}", "", f"*{_TITLES[shown.side][:-1]}.* {shown.text}"]
    if shown.options:
        yield from ["", "| option | type | default | |", "|---|---|---|---|", *map(_row, shown.options)]
    for example in shown.examples:
        yield from ["", *_example(example)]


def _row(option: Option) -> str:
    default = "*required*" if option.default is None else f"`{option.default}`"
    return f"| `{option.name}` | {_cell(option.kind)} | {_cell(default)} | {_cell(option.help)} |"


def _example(shown: ShownExample) -> Iterator[str]:
    yield from [f"**{shown.title}**" + (f" ({shown.known})" if shown.known else ""), ""]
    yield from ["```yaml", shown.step, "```", "", *_fenced(diff(shown.before, shown.after))]


def _fenced(lines: Sequence[str]) -> list[str]:
    """Lines as a block that nothing in them ends."""
    longest = max((len(run) for line in lines for run in re.findall("`+", line)), default=0)
    fence = "`" * max(3, longest + 1)
    return [f"{fence}diff", *lines, fence]


def diff(before: Sequence[str], after: Sequence[str]) -> list[str]:
    """Lines that stay, go (``-``) and come (``+``); what has changed stands right below what it was."""
    lines: list[str] = []
    for _, i, i_end, j, j_end in SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        gone, come = before[i:i_end], after[j:j_end]
        if gone == come:
            lines += [f"  {line}" for line in gone]
        elif len(gone) == len(come):
            lines += [line for pair in zip(gone, come, strict=True) for line in _changed(*pair)]
        else:
            lines += [*(f"- {line}" for line in gone), *(f"+ {line}" for line in come)]
    return [line.rstrip() for line in lines]


def _changed(gone: str, come: str) -> tuple[str, str]:
    return f"- {gone}", f"+ {come}"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
