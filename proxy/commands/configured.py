"""The one configuration that a command is for: the server's."""

import os
from pathlib import Path
from typing import Annotated, Final

import typer

from proxy.configuration.load import load
from proxy.configuration.settings import Settings
from proxy.errors import ConfigError

USUAL: Final = Path("config/agora.yaml")
_NAMED_BY: Final = "TURNKEEPER_CONFIG"
_HOW: Final = f"Name another in {_NAMED_BY}, or as --help says."

Served = Annotated[Path, typer.Argument(metavar="CONFIG", help="A YAML file.", envvar=_NAMED_BY)]
Where = Annotated[Path, typer.Option("--config", metavar="CONFIG", help="A YAML file.", envvar=_NAMED_BY)]


def configured(config: Path) -> Settings:
    """What a configuration says; raises ConfigError, which tells how to name another where there is none."""
    try:
        return load(config, os.environ)
    except ConfigError as error:
        raise error if config.exists() else ConfigError(f"{error.message}\n{_HOW}") from None
