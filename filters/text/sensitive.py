"""Finding personal data in text, whole or as it streams."""

from collections.abc import Collection, Mapping

from filters.text.pattern import Bounded
from filters.text.personal import SHAPES, Hit, Kind, hits

# A find may depend on what follows it: an octet more, a digit more.
_LOOKED_AHEAD = 2


class Sensitive:
    """What counts as personal: kinds that are known here, and patterns of one's own by name.

    A match of an own pattern has at most ``max_length`` characters; where it would have more, as many are
    one find and the rest is looked at anew.
    """

    def __init__(
        self, kinds: Collection[Kind], patterns: Mapping[str, str] | None = None, max_length: int = 64
    ) -> None:
        self._shapes = [shape for shape in SHAPES if shape.kind in kinds]
        self._own = {name: Bounded(pattern, max_length) for name, pattern in (patterns or {}).items()}
        lengths = [shape.longest for shape in self._shapes] + [own.longest for own in self._own.values()]
        self.longest = max(lengths, default=0)
        """No find has more characters than this."""

    def find(self, text: str, start: int = 0) -> list[Hit]:
        """The finds from ``start`` on, in order, none in another; what stands before it is looked back at.

        Where two overlap, the first keeps its place (the longer one, if both begin together), and what the
        other has beyond it is a find of its own.
        """
        found: list[Hit] = []
        done = start
        for begin, end, kind in self._hits(text, start):
            if end > done:
                found.append((max(begin, done), end, kind))
                done = end
        return found

    def settled(self, text: str, start: int = 0) -> int:
        """Up to where the finds from ``start`` on stay the same, whatever text follows; no find spans it.

        A stream may let go all before it, if it keeps two characters of it for ``find`` to look back at.
        """
        place = max(start, min(self._begun(text), len(text)))
        while spanning := [begin for begin, end, _ in self._hits(text, start) if begin < place < end]:
            place = min(spanning)
        return place

    def _begun(self, text: str) -> int:
        begun = [max(s.begun(text), len(text) - s.longest - _LOOKED_AHEAD) for s in self._shapes]
        own = [len(text) - pattern.longest - _LOOKED_AHEAD for pattern in self._own.values()]
        return min(begun + own, default=len(text))

    def _hits(self, text: str, start: int) -> list[Hit]:
        found = list(hits(self._shapes, text, start))
        for name, pattern in self._own.items():
            found += [(begin, end, name) for begin, end in pattern.spans(text, start)]
        return sorted(found, key=lambda hit: (hit[0], -hit[1]))
