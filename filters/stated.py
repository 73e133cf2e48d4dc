"""Whether a text states something in sentences or lines of its own."""

import unicodedata


def plain(text: str) -> str:
    """The text in one case, with single spaces; all else that tells one statement from another stays."""
    folded = text.casefold()
    return " ".join((folded if folded.isascii() else unicodedata.normalize("NFC", folded)).split())
