"""The order of roles that an upstream wants.

A system message that comes late is turned into a marked user message where it stands. Moving it to the
start would lose its place in the conversation, and would change the start of the prompt from turn to turn,
which the upstream's prompt cache lives on.
"""

from collections.abc import Sequence

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from filters.message import SYSTEM, Content, Message
from proxy.kinds.kind import Kind

MARK = "[system] "

# What stands for a turn in which nothing was said: no upstream takes an empty message everywhere.
SILENCE = "…"

_SPEAKERS = ("user", "assistant")


def arranged(kind: Kind, messages: Sequence[Message]) -> Sequence[Message]:
    """The messages in the order of roles that ``kind`` wants; a tool call stays with its results."""
    if kind.roles:
        messages = _with_roles(kind, messages)
    if kind.system != "many":
        messages = _system_first(messages, single=kind.system == "one")
    if kind.alternate:
        messages = _taking_turns(messages)
    if kind.answer_follows_tool:
        messages = _with_answers(messages)
    if kind.user_ends and messages and _is_answer(messages[-1]):
        messages = [*messages, Message(role="user", content=SILENCE)]
    return messages


def _with_roles(kind: Kind, messages: Sequence[Message]) -> Sequence[Message]:
    roles = kind.roles
    if not any(message.role in roles for message in messages):
        return messages
    return [replace(m, role=roles[m.role]) if m.role in roles else m for m in messages]


def _system_first(messages: Sequence[Message], *, single: bool) -> Sequence[Message]:
    start = next((i for i, message in enumerate(messages) if message.role not in SYSTEM), len(messages))
    leading, rest = list(messages[:start]), messages[start:]
    if single and leading:
        leading = [_one(leading)]
    return [*leading, *(_marked(message) for message in rest)]


def _one(leading: Sequence[Message]) -> Message:
    first = leading[0]
    for message in leading[1:]:
        first = replace(first, content=_joined(first.content, message.content, "\n\n"))
    return first


def _marked(message: Message) -> Message:
    if message.role not in SYSTEM:
        return message
    return replace(message.prefixed(MARK), role="user", name=UNSET)


def _taking_turns(messages: Sequence[Message]) -> Sequence[Message]:
    turns: list[Message] = []
    for message in messages:
        before = turns[-1] if turns else None
        if before is not None and _is_one_turn(before, message):
            turns[-1] = _merged(before, message)
        elif message.role == "assistant" and (before is None or before.role in SYSTEM):
            turns += [Message(role="user", content=SILENCE), message]
        else:
            turns.append(message)
    return turns


def _is_one_turn(first: Message, second: Message) -> bool:
    if first.role != second.role or first.role not in _SPEAKERS:
        return False
    return not (first.tool_calls or second.tool_calls or _calls_function(first) or _calls_function(second))


def _calls_function(message: Message) -> bool:
    return bool(message.others.get("function_call"))


def _merged(first: Message, second: Message) -> Message:
    content = _joined(first.content, second.content, "\n")
    return replace(first, content=content, others={**first.others, **second.others})


def _with_answers(messages: Sequence[Message]) -> Sequence[Message]:
    answered: list[Message] = []
    for message in messages:
        if message.role == "user" and answered and answered[-1].role == "tool":
            answered.append(Message(role="assistant", content=SILENCE))
        answered.append(message)
    return answered


def _is_answer(message: Message) -> bool:
    if message.tool_calls or message.others.get("prefix") is True:
        return False
    return message.role not in ("user", "tool")


def _joined(first: Content | UnsetType, second: Content | UnsetType, gap: str) -> Content:
    if isinstance(first, list) or isinstance(second, list):
        return [*_parts(first), *_parts(second)]
    return gap.join(text for text in (first, second) if isinstance(text, str) and text)


def _parts(content: Content | UnsetType) -> list[dict[str, str]]:
    if isinstance(content, list):
        return content
    return [{"type": "text", "text": content}] if isinstance(content, str) and content else []
