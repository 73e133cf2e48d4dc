"""Filters on a terminal: a list, or pages; plain text where nobody looks at it."""

from collections.abc import Sequence

from rich.console import Console, Group
from rich.markdown import Markdown
from rich.table import Table
from rich.text import Text

from proxy.describe.page import KINDS, Page
from proxy.describe.reference import page


def show_list(pages: Sequence[Page], console: Console) -> None:
    """A line for each filter, by side."""
    width = max((len(each.name) for each in pages), default=0)
    for side in KINDS:
        of_side = [each for each in pages if each.side == side]
        if not of_side:
            continue
        console.print(Text(f"{side}:", style="bold"))
        if console.is_terminal:
            console.print(_table(of_side, width))
        else:
            _plain(console, [f"  {each.name:{width}}  {each.summary}" for each in of_side])


def show_pages(pages: Sequence[Page], console: Console) -> None:
    """All that a filter says of itself, on each side that it has."""
    texts = [page(each) for each in pages]
    if console.is_terminal:
        console.print(Group(*map(Markdown, texts)))
    else:
        _plain(console, "\n".join(texts).splitlines())


def _table(pages: Sequence[Page], width: int) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 2))
    table.add_column(style="cyan", min_width=width, no_wrap=True)
    table.add_column()
    for each in pages:
        table.add_row(Text(each.name), Text(each.summary))
    return table


def _plain(console: Console, lines: Sequence[str]) -> None:
    """Lines as they are: what reads them can break them where it likes."""
    for line in lines:
        console.file.write(f"{line}\n")
