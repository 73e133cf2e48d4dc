"""HTML's tags. Those of SSML are none of them: they are meant for the voice."""

import re

from filters.text.rewriter import Arriving

_INLINE = re.compile("a|abbr|b|cite|code|del|em|font|i|ins|kbd|small|span|strong|sup|u")
_BLOCK = re.compile(
    "blockquote|br|center|details|div|h[1-6]|hr|img|li|ol|p|pre|summary|table|tbody|td|tfoot|th|thead|tr|ul"
)
_NAME = re.compile(r"[A-Za-z0-9]{0,12}")
_REST = re.compile(r"[^<>\n]{0,120}")


def tag_at(arriving: Arriving, i: int) -> tuple[int, str] | None:
    """Where the tag at ``i`` ends and what is said for it, a line break for a block's. Raises Undecided.

    ``a <b and c> d`` holds no tag: attributes have values.
    """
    start = i + 1 + (arriving.at(i + 1) == "/")
    behind = arriving.past(_NAME, start)
    name = arriving.text[start:behind].lower()
    is_block = _BLOCK.fullmatch(name) is not None
    if not (is_block or _INLINE.fullmatch(name)) or arriving.at(behind) not in {" ", "/", ">"}:
        return None
    end = arriving.past(_REST, behind)
    rest = arriving.text[behind:end].strip(" /")
    if arriving.at(end) != ">" or (rest and "=" not in rest):
        return None
    return end + 1, "\n" if is_block else ""
