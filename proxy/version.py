"""The version of Turnkeeper, and the interpreter that runs it."""

import platform
import sysconfig
from importlib.metadata import version
from typing import Final

VERSION = version("turnkeeper")
_OPTIMISED: Final = "--enable-optimizations"
_OPTIONS: Final = (
    _OPTIMISED,
    "--with-lto",
    "--enable-experimental-jit",
    "--with-tail-call-interp",
    "--disable-gil",
)


def interpreter() -> str:
    """The interpreter's name and version, and the options of its build that decide how fast it is."""
    name = f"{platform.python_implementation()} {platform.python_version()}"
    recorded = sysconfig.get_config_var("CONFIG_ARGS")
    if not recorded:
        return name
    options = [option for option in _OPTIONS if option in recorded]
    # Some distributions optimise in other ways, which the build does not record.
    missing = [] if _OPTIMISED in options else [f"no {_OPTIMISED} recorded"]
    return ", ".join([name, *missing, *options])
