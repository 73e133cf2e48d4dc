"""Where a picture goes, for those who want one."""

import argparse
from importlib.util import find_spec
from pathlib import Path


def picture(name: str) -> Path:
    """The file that is named; nobody measures for half an hour to learn that it cannot be drawn."""
    if find_spec("matplotlib") is None:
        raise argparse.ArgumentTypeError("a picture needs matplotlib: install it with .venv/bin/pip")
    return Path(name)
