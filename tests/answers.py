"""Answers as models write them, in deltas: for property tests, and for what an answer filter says of them."""

from hypothesis import strategies as st

SAMPLES = (
    "**Sure!** Here is *one*: 5 * 3 = 15, snake_case, C#, #1.\n\n1. Januar\n- a\n  - [x] b\n---\n> c\n",
    "```python\nprint('*')\n```\nor `rm *` | x\n| a | b |\n|---|---|\n| 1 | 2 |\n",
    "See [the *map*](https://a.org/a_(b) 'T'), ![cat](https://x.y/z.png), <https://q.r>. 👍🏽 www.z.de.",
    "[14:23] **Assistant:** Hi 👨‍👩‍👧 1️⃣ 🇩🇪 <b>x</b> a < b <break time='1s'/> ann@example.org",
    "<think>why</think>\n\nBecause. <thinking> <plan>a</plan> b <reasoning>",
    "这是**重要**的, 请看https://a.b/c。谢谢 مرحبا **بك** नमस्ते क्‍ष _अच्छा_ Lehrer*innen 2**3",
    "Call +49 170 1234567 or 4111 1111 1111 1111, order ORD-4711. At 192.0.2.1, 2001:db8::1.",
)
_ALPHABET = st.sampled_from(list("ab1 _*`~#[](){}<>!|\\-+=>:.,@/\"'\n\t hw😀\ufe0f\u200d\u20e3é好ก"))
_PIECES = st.sampled_from(
    (
        *("**", "](", "[a", "![", "[^1]", "```", "\n", "\n- ", "\n# ", "---", "| ", "<b>", "👍", "x"),
        *("https://", "www.", "<think>", "</think>", "[14:23]", "user: "),
        *("a@b.de", "+49 30 1234567", "ORD-1", "4111111111111111"),
    )
)
texts = st.one_of(
    st.sampled_from(SAMPLES),
    st.lists(st.one_of(_ALPHABET, _PIECES), max_size=40).map("".join),
    st.text(max_size=40),
)


@st.composite
def cut_texts(draw):
    """A text and the pieces in which it arrives, empty ones among them."""
    text = draw(texts)
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=12)))
    return text, [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
_parts = st.lists(
    st.one_of(
        _json,
        st.builds(lambda text: {"type": "text", "text": text}, texts),
        st.builds(lambda text: {"type": "thinking", "thinking": [{"type": "text", "text": text}]}, texts),
    ),
    max_size=3,
)
deltas = st.fixed_dictionaries(
    {},
    optional={
        "role": st.just("assistant"),
        "content": st.one_of(texts, texts, st.none(), st.just(""), _parts, _json),
        "refusal": texts,
        "reasoning_content": texts,
        "tool_calls": st.just(
            [{"index": 0, "id": "call_1", "function": {"name": "f", "arguments": '{"a": "**b**"}'}}]
        ),
        "audio": st.just({"id": "audio_1", "transcript": "**Hi** 👋"}),
        "annotations": _json,
        "x": _json,
    },
)


def answer_text(step, pieces, context):
    """What a filter says of an answer that arrives in pieces, as one text."""
    stage = step.open(context)
    if stage is None:
        return "".join(pieces)
    told = [stage.feed({"content": piece}) for piece in pieces]
    return "".join(delta.get("content") or "" for delta in [*told, stage.close()])
