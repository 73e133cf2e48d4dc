"""Personal data marked in text while it arrives."""

from collections.abc import Mapping

from filters.text.sensitive import Sensitive

_LOOKED_BACK_AT = 2


class Redaction:
    """Puts ``marks``, by kind, in the place of finds; what may be the beginning of one is held back."""

    def __init__(self, sensitive: Sensitive, marks: Mapping[str, str]) -> None:
        self._sensitive = sensitive
        self._marks = marks
        self._text = ""
        self._said = 0

    def feed(self, text: str) -> str:
        """What is settled, with marks."""
        self._text += text
        return self._settle(self._sensitive.settled(self._text, self._said))

    def close(self) -> str:
        """What was held back, with marks."""
        return self._settle(len(self._text))

    def _settle(self, place: int) -> str:
        said = self._marked(place)
        kept = max(0, place - _LOOKED_BACK_AT)
        self._text, self._said = self._text[kept:], place - kept
        return said

    def _marked(self, place: int) -> str:
        pieces, done = [], self._said
        for begin, end, kind in self._sensitive.find(self._text, self._said):
            if end > place:
                break
            pieces += [self._text[done:begin], self._marks[kind]]
            done = end
        return "".join([*pieces, self._text[done:place]])
