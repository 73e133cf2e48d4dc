"""``python -m proxy`` is ``turnkeeper``."""

import signal
from importlib import import_module


def main() -> None:
    """The ``turnkeeper`` command; Ctrl-C while it is being loaded ends it, and that is all."""
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    cli = import_module("proxy.cli")
    signal.signal(signal.SIGINT, handler)
    cli.main()


if __name__ == "__main__":
    main()
