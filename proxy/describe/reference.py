"""The pages of filters as Markdown."""

import re
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher

from proxy.describe.pages import ExampleText, FilterPage

_TITLES = {"request": "Request filters", "answer": "Answer filters"}
_PLACES = {
    "request": "They stand under a pipeline's `request:`, between the client's request and the model.",
    "answer": "They stand under a pipeline's `answer:`, between the model's answer and the client.",
}

_OPENING = "After this page you can name each step of a pipeline, with what it does before and after."


def filters_reference(pages: Sequence[FilterPage]) -> str:
    """All pages as one document, with an index."""
    lines = ["# Filters", "", "<!-- Made by `make docs` from the filters themselves. -->", "", _OPENING, ""]
    anchors: dict[FilterPage, str] = {}
    for page in pages:
        # The second heading of a name gets a number.
        anchors[page] = f"{page.name}-1" if page.name in anchors.values() else page.name
    for side, title in _TITLES.items():
        rows = [
            f"| [`{page.name}`](#{anchors[page]}) | {table_cell(page.summary)} |"
            for page in pages
            if page.side == side
        ]
        if rows:
            header = ["| filter | what it does |", "|---|---|"]
            lines += [f"**{title}.** {_PLACES[side]}", "", *header, *rows, ""]
    for page in pages:
        lines += [*_page_lines(page, "##"), ""]
    return "\n".join(lines)


def filter_reference(page: FilterPage) -> str:
    """One page as a document."""
    return "\n".join(_page_lines(page, "#")) + "\n"


def _page_lines(page: FilterPage, heading: str) -> Iterator[str]:
    yield from [f"{heading} {page.name}", "", f"*{_TITLES[page.side][:-1]}.* {page.text}"]
    if page.options:
        yield from ["", "| option | type | default | |", "|---|---|---|---|"]
    for option in page.options:
        default = "*required*" if option.default is None else table_cell(f"`{option.default}`")
        yield f"| `{option.name}` | {table_cell(option.kind)} | {default} | {table_cell(option.help)} |"
    for example in page.examples:
        yield from ["", *_example_lines(example)]


def _example_lines(example: ExampleText) -> Iterator[str]:
    yield from [f"**{example.title}**" + (f" ({example.context})" if example.context else ""), ""]
    yield from ["```yaml", example.step, "```", ""]
    lines = diff(example.before, example.after)
    # Nothing in the lines may end the block.
    longest = max((len(run) for line in lines for run in re.findall("`+", line)), default=0)
    fence = "`" * max(3, longest + 1)
    yield from [f"{fence}diff", *lines, fence]


def table_cell(text: str) -> str:
    """A text as one cell of a Markdown table."""
    return " ".join(text.split()).replace("|", "\\|")


def diff(before: Sequence[str], after: Sequence[str]) -> list[str]:
    """Lines that stay, are removed (``-``) or added (``+``); a changed line stands below its old form."""
    lines: list[str] = []
    for _, i, i_end, j, j_end in SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        removed, added = [f"- {line}" for line in before[i:i_end]], [f"+ {line}" for line in after[j:j_end]]
        if before[i:i_end] == after[j:j_end]:
            lines += [f"  {line}" for line in before[i:i_end]]
        elif len(removed) == len(added):
            lines += [line for pair in zip(removed, added, strict=True) for line in pair]
        else:
            lines += [*removed, *added]
    return [line.rstrip() for line in lines]
