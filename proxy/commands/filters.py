import os
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from proxy.commands.terminal import Json, Own, miswritten, told, write_json
from proxy.configuration.load import shelf_of
from proxy.configuration.shelf import Shelf
from proxy.configuration.word import alternatives, quoted
from proxy.describe import page as describe


def filters(
    name: Annotated[str | None, typer.Argument(help="One filter, for its page.")] = None,
    config: Own = None,
    *,
    as_json: Json = False,
) -> None:
    """List the filters that there are, or show one: what it does, its options, examples."""
    pages = describe.pages(shelf(config))
    found = [page for page in pages if page.name == (name or page.name)]
    if not found:
        known = dict.fromkeys(page.name for page in pages)
        raise miswritten(f"no filter named{quoted(name or '')}{alternatives(name or '', known)}")
    if as_json:
        write_json(msgspec.json.encode(found))
        return
    from rich.console import Console

    from proxy.describe import listing

    (listing.show_pages if name else listing.show_list)(found, Console())


def shelf(config: Path | None) -> Shelf:
    """The filters that a configuration may name; without one, those that are shipped or installed."""
    with told():
        return shelf_of(config, os.environ) if config else Shelf()
