"""``python -m proxy`` is ``turnkeeper``."""

import signal
import sys
from importlib import import_module
from typing import Final

from proxy.server import signals

_READ_AGAIN: Final = {"serve", "worker"}


def main() -> None:
    """The ``turnkeeper`` command; Ctrl-C while it is being loaded ends it, and that is all.

    A SIGHUP that comes early ends nothing that reads its configuration again on one.
    """
    if _READ_AGAIN.intersection(sys.argv[1:2]):
        signals.block(signals.RELOAD)
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    cli = import_module("proxy.cli")
    signal.signal(signal.SIGINT, handler)
    cli.main()


if __name__ == "__main__":
    main()
