"""From words to what stands for them in the index, the same for what was said and for what is asked."""

import hashlib
import hmac
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from proxy.memory.archive.stems import Stemmer

# Chinese characters, kana, Hangul, Thai to Myanmar, Khmer: words are not told apart by spaces, or take many
# endings, so that each two neighbours count as a word.
_UNSPACED: Final = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u1100-\u11ff\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uac00-\ud7af\uf900-\ufaff\uff66-\uff9d\U00020000-\U0003ffff"
)
_RUN: Final = re.compile(f"[{_UNSPACED}]+|[^\\W_{_UNSPACED}]+")
_IS_UNSPACED: Final = re.compile(f"[{_UNSPACED}]")
_APOSTROPHE: Final = re.compile("(?<=\\w)['\u2019\u02bc](?=\\w)")
_ACCENTS: Final = re.compile("[\u0300-\u036f]")
_LONGEST: Final = 64

STOP_WORDS: Final = frozenset(
    """
    a about after again ah all also am an and any are arent as at be because been before being but
    by can cant could couldnt did didnt do does doesnt doing done dont down er ever for from get
    gets getting go going gone gonna got had has hasnt have havent having he hed hello her here hers
    hey hi him his hmm how hows i id if ill im in into is isnt it its itself ive just know let lets
    like made make me mine mm more most much my myself no nor not now of off oh ok okay on once one
    only or other our ours out over own please really remember said say says shall she should so
    some something such sure tell tells than thank thanks that thats the their them then there
    theres these they theyre thing things think this those to told too uh uhm um up us very want was
    wasnt we well were weve what whats when where which while who whom whos why will with wont would
    yeah yes you youd youll your youre yours youve
    """.split()  # noqa: SIM905 - a table reads best as text
)
"""Words of English that tell one turn from another in hardly any talk."""


class Scope(NamedTuple):
    """Whose words: a person's, or where the person is empty, the tenant's own."""

    tenant: str
    person: str = ""


class Lexicon:
    """Terms of the index: stems under a prefix that is their owner's alone.

    So nobody's words are ever looked up among another's. With ``keys``, newest first, a term is an HMAC, and
    the index tells nothing but which turns of one owner share a word.
    """

    def __init__(self, keys: Sequence[bytes] = ()) -> None:
        self._keys = keys
        self._stemmer = Stemmer()

    @property
    def key(self) -> bytes:
        """The newest key; empty where there is none."""
        return self._keys[0] if self._keys else b""

    def stems(self, text: str) -> list[str]:
        """The stems of a text in order, without stop words."""
        return self._stemmer.stems(word for word in words(text) if word not in STOP_WORDS)

    def terms(self, scope: Scope, text: str) -> str:
        """What stands in the index for a text, by spaces."""
        sealed = _sealer(scope, self._keys[0] if self._keys else None)
        return " ".join(map(sealed, self.stems(text)))

    def asked(self, scope: Scope, stems: Iterable[str]) -> list[tuple[str, ...]]:
        """For each stem the terms that may stand for it: one for each key."""
        sealers = [_sealer(scope, key) for key in self._keys or (None,)]
        return [tuple(sealed(stem) for sealed in sealers) for stem in stems]


class _sealer:  # noqa: N801 - a function with what it needs drawn once
    def __init__(self, scope: Scope, key: bytes | None) -> None:
        tenant = scope.tenant.encode("utf-8", "surrogatepass")
        owner = len(tenant).to_bytes(8, "big") + tenant + scope.person.encode("utf-8", "surrogatepass")
        self._prefix = hashlib.blake2b(owner, digest_size=5).hexdigest()
        self._key = key and hmac.digest(key, b"owner\0" + owner, "sha256")

    def __call__(self, stem: str) -> str:
        if self._key is None:
            return f"{self._prefix}{stem}"
        return hmac.digest(self._key, stem.encode("utf-8", "surrogatepass"), "sha256")[:10].hex()


def words(text: str) -> Iterator[str]:
    """The words of a text: folded, without accents; of scripts without spaces, each two neighbours."""
    for run in _RUN.findall(_folded(text)):
        if not _IS_UNSPACED.match(run):
            yield run[:_LONGEST]
        elif len(run) == 1:
            yield run
        else:
            yield from (one + other for one, other in pairwise(run))


def _folded(text: str) -> str:
    if text.isascii():
        return _APOSTROPHE.sub("", text).lower()
    plain = _ACCENTS.sub("", unicodedata.normalize("NFKD", _APOSTROPHE.sub("", text)))
    return unicodedata.normalize("NFKC", plain).casefold()
