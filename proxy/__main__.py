"""``python -m proxy`` is ``turnkeeper``."""

from proxy.cli import main

main()
