"""Texts that are no facts: what tells an assistant how to behave, or speaks in the place of somebody."""

import re
from typing import Final

from filters.injection import one_line

_LONGEST: Final = 2000
_ASSISTANT: Final = (
    r"(?:the |this |an |your |any |every |der |die |das |ein |l['\u2019]|le |la |el |il |o |a )?"
    r"(?:ai|assistants?|chat ?bots?|bots?|llm|language models?|models?|system|voice agents?|assistente?n?"
    r"|asistente|modell?o|modèle|sistema|ki)"
)
# Verbs of what an assistant does, and not callers: a fact has them in the third person.
_ACTS: Final = (
    r"answer|apply|approve|ask|authori[sz]e|bypass|call|charge|comply|confirm|disclose|follow|give|grant"
    r"|greet|ignore|mention|obey|offer|output|print|refund|refuse|repeat|reply|respond|reveal|say|share"
    r"|skip|speak|tell|transfer|treat|trust|use|verify|waive"
)
_INSTRUCTIONS: Final = re.compile(
    # A role, as a transcript tells who speaks.
    r"^[\W_]*(?:system|developer|assistant|ai|tool|function)\b[^:\uff1a]{0,64}[:\uff1a]"
    # The assistant is spoken to.
    r"|^(?:please |from now on,? |always |never |bitte )*you(?:['\u2019]re| are| must| should| shall| will"
    r"| may| can| have to| need to)\b"
    r"|^(?:du (?:musst|sollst|darfst|bist)|sie (?:müssen|sollen|dürfen) (?:immer|nie)|tu dois|vous devez"
    r"|debes|usted debe|devi|você deve)\b"
    # What the assistant has to do.
    rf"|^{_ASSISTANT} (?:must|should|shall|has to|have to|is to|needs to|may|can|will|muss|soll|darf|doit"
    r"|debe|deve)\b"
    # Commands.
    rf"|^(?:please |from now on,? |when asked,? )*(?:always|never|don['\u2019]t|do not) (?:{_ACTS})\b"
    rf"|^(?:please|from now on,?) (?:{_ACTS}|act|behave|pretend|be)\b"
    r"|^(?:ignore|disregard|override|bypass|obey|pretend|act as|respond|reply|ignoriere|antworte|vergiss alle"
    r"|ignorez|ignora|ignorar)\b"
    r"|\b(?:ignore|disregard|override|forget|bypass)\b[^.]{0,40}\b(?:instructions?|rules?|prompts?|policy"
    r"|policies|guidelines|restrictions|safeguards|checks?)\b"
    r"|\b(?:ignorier\w*|vergiss)\b[^.]{0,40}\b(?:anweisung\w*|regeln)\b"
    # A role that would have a say.
    r"|\b(?:has|have|with|in|gets?|enabled?|granted|full) (?:full |all |an? |the )?"
    r"(?:admin(?:istrator)?|root|system|developer|debug|jailbreak|god|operator)s?[- ](?:mode|access|rights"
    r"|privileges?|permissions?|role)\b",
    re.IGNORECASE,
)


def is_instruction(text: str) -> bool:
    """Whether a text would steer an assistant that is shown it, and states nothing about a user."""
    return _INSTRUCTIONS.search(one_line(text, _LONGEST)) is not None
