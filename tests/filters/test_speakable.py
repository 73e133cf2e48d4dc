from pathlib import Path

import pytest
from pydantic import ValidationError

from filters.base import Context, Snapshot
from filters.speakable import Speakable
from tests.answers import answer_text

GOLDEN = Path(__file__).parents[1] / "golden" / "speakable"
CONTEXT = Context(now=0.0)
ANSWERS = sorted(GOLDEN.glob("*.before.md"))


def spoken(text, context=CONTEXT, **options):
    return answer_text(Speakable(**options), [text], context)


@pytest.mark.parametrize("written", ANSWERS, ids=lambda path: path.name.partition(".")[0])
def test_an_answer_is_said_as_its_golden_twin(written):
    text = written.read_text()
    expected = written.with_name(written.name.replace(".before.md", ".after.txt")).read_text()
    assert spoken(text) == expected
    assert answer_text(Speakable(), text, CONTEXT) == expected


def test_there_are_golden_answers():
    assert len(ANSWERS) >= 8


@pytest.mark.parametrize(
    "text",
    [
        "5 * 3 and 2**3 and 5*3",
        "a_b, snake_case_too and a__b",
        "C#, F#, #1, #tag, no # in between",
        "1. Januar",
        "3-4 or 3 - 4, -5 and --x",
        "a < b, a <b and c> d, i<n",
        "mail a_b@example.org or see example.org",
        "Lehrer*innen, f**k, A* and *.txt, dial *67",
        "[sic] [1] arr[0] (see) f(x) {y}",
        "What! Really?! (yes!)",
        "© ™ ® → C♯ ½ ℃ “quoted” — …",
        "क्‍ष می‌خواهم 葛󠄀",
        "<speak>now <break time='1s'/> <say-as interpret-as='date'>1</say-as></speak>",
        "~5 minutes, a|b, a \\ b, $5",
        "which width http ftp://x wwwhat",
        "It is 14:23. user: hi",
        "",
        "\n\n  Hello\n",
    ],
)
def test_what_is_no_mark_survives(text):
    assert spoken(text) == text
    assert answer_text(Speakable(), text, CONTEXT) == text


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("**a** __b__ *c* _d_ ***e*** ~~f~~", "a b c d e f"),
        ("**a:** *b!* (*c*) **“d”**", "a: b! (c) “d”"),
        ("**unclosed", "unclosed"),
        ("see *\nnext", "see *\nnext"),
        ("# A\n###### B ##\n####### C\n#\n", "A\nB \n####### C\n\n"),
        ("- a\n+ b\n* c\n• d\n- [x] e\n- [link]\n-\n", "a\nb\nc\nd\ne\n[link]\n\n"),
        ("a\n---\nb\n* * *\nc\n___\nd\n=====\ne", "a\nb\n\nc\nd\ne"),
        ("> a\n>b\n> > c\n>= 5", "a\nb\nc\n>= 5"),
        ("```py\nx *y* `z`\n```\n**b**", "x *y* `z`\nb"),
        ("~~~\n```\n~~~\n*b*", "```\nb"),
        ("``` is said `*a*` ``b_*c*_``", " is said *a* b_*c*_"),
        ("`` a`*b* `` *c*", " a*b*  c"),
        ("```python", ""),
        ("It`s 使用`a_*b*`函数", "It's 使用a_*b*函数"),
        ("[a](b) [c *d*](e 'f') ![g](h) ![](i)", "a c d g "),
        ("[a](https://x.y/z_(1)?q=[2]) b", "a b"),
        ("[a](b c d", "a c d"),
        ("[a](b\nc", "a\nc"),
        ("wow![a](b)", "wow!a"),
        ("note[^1] and\n[^2]: this", "note and\n: this"),
        ("| a | b |\n|:--|--:|\n|   | c |", "a, b\n, c"),
        ("a | b\n--- | ---\nc | d", "a , b\nc , d"),
        ("|x| = 3", "|x| = 3"),
        ("| a \\| b | `c` |", "a | b, c"),
        ('<b>a</b><br>b<BR/>c <a href="d">e</a>', "a\nb\nc e"),
        ("\\*a\\* \\[b\\]", "*a* [b]"),
    ],
)
def test_markdown_goes(written, expected):
    assert spoken(written) == expected
    assert answer_text(Speakable(), written, CONTEXT) == expected


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("a 😀 b", "a b"),
        ("a😀b", "ab"),
        ("✅ done ❤️‍🔥", "done "),
        ("👨‍👩‍👧‍👦 🇩🇪 🏴󠁧󠁢󠁥󠁮󠁧󠁿 👍🏽", ""),
        ("1️⃣ and #️⃣ ©️", "1 and # ©"),
        ("❝a❞ ❶ ♭", "❝a❞ ❶ ♭"),
        ("**a 😀** b", "a b"),
    ],
)
def test_emoji_go(written, expected):
    assert spoken(written) == expected


@pytest.mark.parametrize(
    ("written", "nothing", "word"),
    [
        ("see https://a.b/c?d=e#f. Then", "see . Then", "see link. Then"),
        ("see (http://a.b), ok", "see (), ok", "see (link), ok"),
        ("<https://a.b> x", "x", "link x"),
        ("请看https://a.b/c。谢谢", "请看。谢谢", "请看link。谢谢"),
        ("WWW.a.b or Www.a.b", "WWW.a.b or ", "WWW.a.b or link"),
        ("**https://a.b**", "", "link"),
        ("https://a.b/c_(d)_e, f", ", f", "link, f"),
    ],
)
def test_an_address_goes_or_is_named(written, nothing, word):
    assert spoken(written) == nothing
    assert spoken(written, links="link") == word
    assert "//" not in written or "//" in spoken(written, links=None)


@pytest.mark.parametrize(
    "prefix",
    [
        "[14:23] ",
        "[2026-05-01 14:23:05] ",
        "(+02:05) ",
        "Assistant: ",
        "**assistant:** ",
        "ann: ",
        "bob : ",
        "Mia\uff1a",
        "eve: [14:23] Mia: ",
        "**[14:23]** ",
        "😀 Mia: ",
    ],
)
def test_an_imitated_prefix_goes(prefix):
    context = Context(now=0.0, user="ANN", memory=Snapshot(speakers=frozenset({"Bob", "eve"})))
    assert spoken(prefix + "Hi: 14:23, ann: x", context, speakers=["Mia"]) == "Hi: 14:23, ann: x"


@pytest.mark.parametrize(
    "text",
    ["[sic] so", "[1] a", "[14] b", "(10 people)", "Annie: c", "user name", "ann:b", "Berlin: warm", "+5"],
)
def test_what_only_looks_like_a_prefix_stays(text):
    assert spoken(text, Context(now=0.0, user="ann")) == text


def test_each_part_can_be_switched_off():
    text = "[14:23] user: **a** 😀 <b>b</b> https://c.d"
    assert spoken(text, prefixes=["time"]) == "user: a b "
    assert spoken(text, prefixes=["speaker"]) == "[14:23] user: a b "
    assert spoken(text, prefixes=[]) == "[14:23] user: a b "
    assert spoken(text, markdown=False) == "**a** <b>b</b> "
    assert spoken(text, html=False) == "a <b>b</b> "
    assert spoken(text, emoji=False) == "a 😀 b "
    assert spoken(text, links=None) == "a b https://c.d"


def test_plain_words_pass_at_once_as_the_very_same_object():
    stage = Speakable().open(CONTEXT)
    for text in ["It", " is", " warm", ", isn't", " it? Yes!", "\n", "\n", "好的。", " 1. May - with", " x"]:
        delta = {"content": text}
        assert stage.feed(delta) is delta


def test_a_mark_waits_for_one_character_alone():
    stage = Speakable().open(CONTEXT)
    told = ["I", " **", "really", "**", " mean [", "the map", "](", "https://a.b", ")", ".", " Ok"]
    shown = [stage.feed({"content": text})["content"] for text in told]
    assert shown == ["I", " ", "really", "", " mean ", "", "the map", "", "", "", ". Ok"]


@pytest.mark.parametrize(
    "options", [{"links": "x" * 65}, {"prefixes": ["name"]}, {"speakers": [""]}, {"mark": True}]
)
def test_a_setting_that_cannot_work_is_a_fault(options):
    with pytest.raises(ValidationError):
        Speakable(**options)
