"""Values that stand within other text."""


def one_line(value: str, max_length: int) -> str:
    """The value as one line: line breaks and control characters become spaces, and it is cut."""
    return (value if value.isprintable() else _unbroken(value)).strip()[:max_length].strip()


def _unbroken(text: str) -> str:
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())
