"""``python -m proxy`` is ``turnkeeper``."""

import signal
import sys
from importlib import import_module
from typing import Final

from proxy.server import signals

_READ_AGAIN: Final = {"serve", "worker"}


def main() -> None:
    """Runs the ``turnkeeper`` command; Ctrl-C during the import ends it without a traceback.

    An early SIGHUP does not end commands that reload their configuration on it.
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
