"""``python -m turnkeeper`` is ``turnkeeper``."""

import sys
from importlib import import_module
from importlib.metadata import packages_distributions

_PACKAGES = ("proxy", "filters")
_OURS = "turnkeeper"


def main() -> None:
    """The ``turnkeeper`` command; exits with a message where another distribution has overwritten ours."""
    for name in _PACKAGES:
        try:
            package = import_module(name)
        except Exception as error:  # noqa: BLE001 - another distribution's package may raise anything
            sys.exit(_overwritten(name, f"importing it raises {type(error).__name__}"))
        if getattr(package, "DISTRIBUTION", None) != _OURS:
            sys.exit(_overwritten(name, getattr(package, "__file__", None) or "no __init__.py"))
    import_module("proxy.__main__").main()


def _overwritten(name: str, detail: str) -> str:
    others = sorted({each for each in packages_distributions().get(name, ()) if each != _OURS})
    by = ", ".join(others) or "another distribution"
    return (
        f"The package '{name}' is not Turnkeeper's ({detail}): {by} has overwritten or removed it."
        " Install turnkeeper in a virtual environment of its own; or uninstall the other one, then:"
        " pip install --force-reinstall --no-deps turnkeeper"
    )


if __name__ == "__main__":
    main()
