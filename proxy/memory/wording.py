"""Whether two texts are the same words, as far as engines keep words the same."""

from collections import Counter
from hashlib import blake2b

from filters.letters import WORD, bare

# Of fewer words than this nobody can tell whether they are another text's, out of order.
_TELLING = 3
_SHARE = 0.6


def same(one: str, other: str) -> bool:
    """Whether both say the same: case, accents, punctuation and white space may differ."""
    if one == other:
        return True
    letters = bare(one)
    return bool(letters) and letters == bare(other)


def imprint(text: str) -> str:
    """What is the same for texts that say the same, and tells nothing of the words."""
    return blake2b((bare(text) or text).encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def goes_on(text: str, start: str) -> bool:
    """Whether ``text`` says what ``start`` says and then more; a word may be cut."""
    opening, whole = bare(start), bare(text)
    return bool(opening) and len(whole) > len(opening) and whole.startswith(opening)


def alike(one: str, other: str) -> bool:
    """Whether most words of ``one`` are words of ``other``, in whatever order."""
    said = _words(one)
    count = said.total()
    return count >= _TELLING and (said & _words(other)).total() >= _SHARE * count


def jumbled(one: str, other: str) -> bool:
    """Whether both are the same words in another order."""
    words, others = WORD.findall(one.casefold()), WORD.findall(other.casefold())
    return bool(words) and len(words) == len(others) and sorted(words) == sorted(others)


def _words(text: str) -> Counter[str]:
    return Counter(WORD.findall(text.casefold()))
