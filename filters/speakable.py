from typing import Annotated, ClassVar, Literal

from pydantic import Field

from filters.base import AnswerFilter, Context, Spoken, Stage
from filters.text.markdown import Markdown
from filters.text.rewriter import TextStage, TextStep
from filters.text.speech import Addresses, Emoji, Prefixes

_ROLES = ("assistant", "system", "user")


class Speakable(AnswerFilter):
    """Leave of an answer what can be said aloud: no Markdown, emoji, addresses, nor imitated prefixes.

    Words pass at once; at most some 200 characters wait while it is open what they are, such as the words
    of a link. Numbers of lists stay, and so does code, without its marks. A mark that ends nothing, such as
    the star of ``5 * 3``, is no mark.
    """

    markdown: bool = True
    """Whether Markdown goes: emphasis, headings, bullets, links' targets, tables' lines, code's marks."""

    html: bool = True
    """Whether HTML's tags go with it. SSML's stay, but for ``<p>``, which both have."""

    emoji: bool = True
    """Whether emoji go. The digit of a keycap, and ©, ® and ™, stay."""

    links: Annotated[str, Field(max_length=64)] | None = ""
    """What is said in place of a bare address, such as ``link``. Empty: nothing; null: the address."""

    prefixes: tuple[Literal["time", "speaker"], ...] = ("time", "speaker")
    """Which goes from before the first word: ``[14:23]``, and ``name:`` of a role or of a known speaker."""

    speakers: tuple[Annotated[str, Field(min_length=1, max_length=64)], ...] = ()
    """Further names that may stand before an answer, such as the assistant's own."""

    spoken: ClassVar[tuple[Spoken, ...]] = (
        Spoken(
            "Marks go, words stay",
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
            "An imitated prefix goes, once the model has begun to write as it is shown",
            {"speakers": ["Mia"]},
            before=["[14:2", "3] Mi", "a: It is 14:23."],
            after="It is 14:23.",
        ),
        Spoken(
            "A link has words of its own",
            {"links": "the link"},
            before=["See [the ma", "p](https://exa", "mple.org/a)."],
            after="See the map.",
        ),
        Spoken(
            "An address is named, not read out",
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
        """A stage for one choice; ``None`` where all is switched off."""
        # Emoji stand until the marks around them are judged, and a prefix may stand in bold.
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
