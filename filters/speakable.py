import re
from collections.abc import Iterable
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from filters.base import AnswerFilter, Context, Spoken, Stage
from filters.text.markdown import Markdown
from filters.text.rewriter import Arriving, Rewriter, TextStage, TextStep

_ROLES = ("assistant", "system", "user")
# After a Latin letter, an ``h`` is within a word. In Chinese there is no space before an address.
_MAYBE = re.compile(
    r"""[hHwW<](?:
        (?<=<)(?=[hHwW]|\Z)
      | (?<![A-Za-z].)(?:(?<=[hH])(?=ttps?://|t{0,2}\Z|ttps?:?/?\Z) | (?<=[wW])(?=ww\.|w{0,2}\Z))
    )""",
    re.VERBOSE,
)
_HEADS = ("https://", "http://", "www.")
_INSIDE = re.compile(r"[A-Za-z0-9/#%&=+@$~_-]+")
_MARKS = re.compile(r"[.,;:!?()\[\]'*]{0,16}")
# Pictographs and their parts: keycap, variation, skin tone, flag and tag. Quotation marks and circled digits
# among the dingbats are text, and so are musical accidentals.
_PARTS = (
    "\u20e3\ufe0e\ufe0f\u231a\u231b\u2328\u23cf\u23e9-\u23f3\u23f8-\u23fa"
    "\u25aa\u25ab\u25b6\u25c0\u25fb-\u25fe\u2600-\u266c\u2670-\u275a\u275f-\u2775\u2794-\u27bf"
    "\u2934\u2935\u2b05-\u2b07\u2b1b\u2b1c\u2b50\u2b55\u3030\u303d\u3297\u3299"
    "\U0001f000-\U0001faff\U000e0020-\U000e007f"
)
_LONGEST_NAME = 64
_TIME = re.compile(r"[^:]*\d:\d\d(?:\D.*)?")
_BLANKS = re.compile(r"[ \t]{0,8}")
_WIDE_COLON = "\uff1a"
_CLOSING = {"[": "]", "(": ")"}


class Speakable(AnswerFilter):
    """Remove what cannot be spoken: Markdown, emoji, addresses, and prefixes that the model imitates.

    Text passes at once, except that up to some 200 characters wait while their meaning is open, such as the
    words of a link. Numbers of lists stay, and so does code, without its marks. A character without a
    partner, such as the star in ``5 * 3``, stays.
    """

    markdown: bool = True
    """Whether to remove Markdown: emphasis, headings, bullets, targets of links, table lines, code marks."""

    html: bool = True
    """Whether ``markdown`` also removes HTML tags. Tags of SSML stay, except ``<p>``, which is both."""

    emoji: bool = True
    """Whether to remove emoji. The digit of a keycap stays, and so do ©, ® and ™."""

    links: Annotated[str, Field(max_length=64)] | None = ""
    """The text that replaces a bare address, such as ``link``. Empty: nothing; null: the address stays."""

    prefixes: tuple[Literal["time", "speaker"], ...] = ("time", "speaker")
    """Prefixes to remove before the first word: ``[14:23]``, and ``name:`` of a role or a known speaker."""

    speakers: tuple[Annotated[str, Field(min_length=1, max_length=64)], ...] = ()
    """Further names that may stand before an answer, such as the assistant's own."""

    spoken: ClassVar[tuple[Spoken, ...]] = (
        Spoken(
            "Markdown and emoji are removed",
            {},
            before=[
                "## To",
                "day\n",
                "- **Sun",
                "ny**, 5 * 3",
                " degrees 🌞\n- see [the ma",
                "p](https://example.org)",
            ],
            after="Today\nSunny, 5 * 3 degrees \nsee the map",
        ),
        Spoken(
            "An imitated prefix is removed",
            {"speakers": ["Mia"]},
            before=["[14:2", "3] Mi", "a: It is 14:23."],
            after="It is 14:23.",
        ),
        Spoken(
            "A link keeps its words",
            {"links": "the link"},
            before=["See [the ma", "p](https://exa", "mple.org/a)."],
            after="See the map.",
        ),
        Spoken(
            "An address is replaced by a word",
            {"links": "the link"},
            before=["Go to htt", "ps://example.org/a_b?c=d. Or mail", " a_b@example.org."],
            after="Go to the link. Or mail a_b@example.org.",
        ),
        Spoken(
            "A table is read row by row",
            {},
            before=["| Day | Sky |\n|---|", "---|\n| Mon | blue |\n"],
            after="Day, Sky\nMon, blue\n",
        ),
        Spoken(
            "Each part can be switched off",
            {"markdown": False, "emoji": False, "links": None, "prefixes": []},
            before=["[14:23] **Hi** 👋 https://example.org"],
            after="[14:23] **Hi** 👋 https://example.org",
        ),
    )

    def open(self, context: Context) -> Stage | None:
        """Returns a stage for one choice; ``None`` if everything is switched off."""
        # Emoji after Markdown, whose marks depend on the characters around them; a prefix may be in bold.
        steps: list[TextStep] = []
        if self.links is not None:
            steps.append(Addresses(self.links))
        if self.markdown:
            steps.append(Markdown(html=self.html))
        if self.emoji:
            steps.append(Emoji())
        if self.prefixes:
            names = {*_ROLES, *self.speakers, *context.memory.speakers, context.user or ""}
            by_name = "speaker" in self.prefixes
            steps.append(Prefixes(times="time" in self.prefixes, names=names if by_name else ()))
        return TextStage(*steps) if steps else None


class Addresses(Rewriter):
    """Replaces each bare address by ``instead``; if that is empty, a doubled space is removed too.

    An address after ``](`` is the target of a link, whose text stays: it is removed.
    """

    def __init__(self, instead: str) -> None:
        super().__init__()
        self._instead = instead
        self._inside = False
        self._bracketed = False
        self._depth = 0
        self._apart = False

    def _is_plain(self, text: str) -> bool:
        return not (self._inside or self._apart) and _MAYBE.search(text) is None

    def _step(self, arriving: Arriving, i: int) -> tuple[int, str]:
        if self._inside:
            return self._further(arriving, i)
        if self._apart:
            self._apart = False
            return i + (arriving.at(i) == " "), ""
        match = _MAYBE.search(arriving.text, i)
        start = match.start() if match else len(arriving.text)
        return self._first(arriving, i) if start == i else (start, arriving.text[i:start])

    def _first(self, arriving: Arriving, i: int) -> tuple[int, str]:
        before, first = arriving.before(i), arriving.at(i)
        start, end = i + (first == "<"), None
        if first == "<" or not (before.isascii() and before.isalpha()):
            end = next((start + len(head) for head in _HEADS if arriving.begins(start, head)), None)
        if end is None:
            return i + 1, first
        self._inside, self._bracketed, self._depth = True, first == "<", 0
        self._apart = not self._instead and (not before or before.isspace())
        return end, "" if arriving.last(i).endswith("](") else self._instead

    def _further(self, arriving: Arriving, i: int) -> tuple[int, str]:
        inside = _INSIDE.match(arriving.text, i)
        if inside:
            return inside.end(), ""
        if self._depth and arriving.at(i) == ")":
            self._depth -= 1
            return i + 1, ""
        # Marks belong to an address if more of it follows, otherwise to the sentence around it.
        end = arriving.past(_MARKS, i)
        if end > i and _INSIDE.match(arriving.at(end)):
            marks = arriving.text[i:end]
            self._depth = max(0, self._depth + marks.count("(") - marks.count(")"))
            return end, ""
        self._inside = False
        return (i + 1 if self._bracketed and arriving.at(i) == ">" else i), ""


_FIRST = re.compile(f"[{_PARTS}]")


# The joiner is part of an emoji only after one: Arabic and the scripts of India use it otherwise.
_FURTHER = re.compile(f"[{_PARTS}\u200d]*")


class Emoji(Rewriter):
    """Removes emoji, and a space that would be doubled."""

    def __init__(self) -> None:
        super().__init__()
        self._inside = False
        self._apart = False

    def _is_plain(self, text: str) -> bool:
        return not self._inside and _FIRST.search(text) is None

    def _step(self, arriving: Arriving, i: int) -> tuple[int, str]:
        if self._inside:
            return self._further(arriving, i)
        match = _FIRST.search(arriving.text, i)
        if match is None:
            return len(arriving.text), arriving.text[i:]
        before = arriving.before(match.start())
        self._inside, self._apart = True, not before or before.isspace()
        return match.end(), arriving.text[i : match.start()]

    def _further(self, arriving: Arriving, i: int) -> tuple[int, str]:
        match = _FURTHER.match(arriving.text, i)
        if match and match.end() > i:
            return match.end(), ""
        self._inside = False
        return (i + 1 if self._apart and arriving.at(i) == " " else i), ""


_INSIDE_TIME = re.compile(r"[0-9A-Za-z:.,/+\- ]{0,40}")


class Prefixes(Rewriter):
    """Removes bracketed times and speakers' names before the first word.

    A name is removed with the colon after it; case is ignored.
    """

    def __init__(self, *, times: bool, names: Iterable[str]) -> None:
        super().__init__()
        speakers = {name.strip().lower() for name in names}
        self._names = sorted((n for n in speakers if 0 < len(n) <= _LONGEST_NAME), key=len, reverse=True)
        self._times = times
        self._removed = False
        self._begun = False

    def _is_plain(self, text: str) -> bool:
        return self._begun

    def _step(self, arriving: Arriving, i: int) -> tuple[int, str]:
        if self._begun:
            return len(arriving.text), arriving.text[i:]
        if arriving.at(i).isspace():
            return i + 1, "" if self._removed else arriving.at(i)
        end = self._end_of_time(arriving, i) or self._end_of_name(arriving, i)
        self._removed, self._begun = end is not None, end is None
        return end or i, ""

    def _end_of_time(self, arriving: Arriving, i: int) -> int | None:
        closing = _CLOSING.get(arriving.at(i)) if self._times else None
        if not closing or not (arriving.at(i + 1).isdigit() or arriving.at(i + 1) == "+"):
            return None
        end = arriving.past(_INSIDE_TIME, i + 1)
        is_time = arriving.at(end) == closing and _TIME.fullmatch(arriving.text, i + 1, end)
        return end + 1 if is_time else None

    def _end_of_name(self, arriving: Arriving, i: int) -> int | None:
        for name in self._names:
            if arriving.begins(i, name):
                end = arriving.past(_BLANKS, i + len(name))
                colon = arriving.at(end)
                is_prefix = colon == _WIDE_COLON or (colon == ":" and (arriving.at(end + 1) or " ").isspace())
                return end + 1 if is_prefix else None
        return None
