"""A model that declines in plain words, as most do that have no field for it."""

import re
from typing import Final

_LONGEST: Final = 600
_NOT: Final = r"(?:can(?:no|')t|could(?:n't| not)|won't|(?:a|')m (?:unable|not able))"
_DO: Final = "help|assist|provide|comply|fulfil|continue|summari[sz]e|write|do that|engage"
_WORDS: Final = re.compile(
    rf"(?:i'?m|i am) (?:\w+ )?(?:sorry|afraid)\b.{{0,60}}\b(?:i|we) ?{_NOT}"
    rf"|(?:sorry|i apologi[sz]e)\b,? (?:but )?i ?{_NOT}"
    rf"|i ?{_NOT}\b.{{0,20}}\b(?:{_DO})"
    r"|as an? (?:ai|artificial intelligence|(?:large )?language model)\b"
    r"|(?:es )?tut mir (?:\w+ )?leid\b.{0,60}\b(?:kann|darf)\b"
    r"|(?:je suis )?désolée?\b.{0,60}\bje ne (?:peux|suis|puis)\b"
    r"|lo (?:siento|lamento)\b.{0,60}\bno puedo\b"
    r"|(?:desculpe|sinto muito|lamento)\b.{0,60}\bnão posso\b"
    r"|mi dispiace\b.{0,60}\bnon posso\b"
    r"|(?:很|非常)?(?:抱歉|对不起).{0,30}(?:无法|不能)"
    r"|申し訳(?:ありません|ございません).{0,60}(?:できません|かねます)",
    re.IGNORECASE,
)


def refuses(text: str) -> bool:
    """Whether a short text begins as refusals do; notes on others begin otherwise."""
    plain = text.replace("\N{RIGHT SINGLE QUOTATION MARK}", "'").lstrip("\"'*_ ")
    return len(text) <= _LONGEST and _WORDS.match(plain) is not None
