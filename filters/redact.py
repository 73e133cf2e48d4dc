import json
import re
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Annotated, Any, ClassVar, Self, TypeVar, get_args

import msgspec
from pydantic import Field, model_validator

from filters.base import AnswerFilter, Context, Example, Messages, RequestFilter, Spoken, Stage
from filters.injection import Injected
from filters.message import Message, Role
from filters.option_types import Whole, template_with
from filters.text.pattern import OwnPattern, Replacer
from filters.text.personal import Kind, Sensitive, StreamRedaction
from filters.text.rewriter import TextStage

V = TypeVar("V", str, dict[str, Any])

# A JSON string, together with a colon after it, which marks a name: the two cannot be decoded as JSON. An
# unclosed string extends to the end of the text; otherwise a search would start at each quotation mark in it.
_STRING = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"(?:\s*:)?|\\?\Z)', re.DOTALL)


class Redact(RequestFilter, AnswerFilter):
    """Replace e-mail addresses, phone, card and account numbers, and IP addresses by marks.

    The filter reads texts and parts, refusals, tool results, arguments of tool calls and of their older form
    ``function_call``, and the ``metadata.original`` of an interrupted answer. Summaries and facts are
    redacted with the user's messages, results of memory tools with tool results. Memory still stores the
    original words; ``memory.redact`` changes that. Card numbers and IBANs must have correct check digits. A
    phone number is recognised by a plus, a leading zero, brackets or the groups of North America; ten bare
    digits stay, because they may be an order number. Numbers that are spelled out in words stay, too. As a
    window grows, only new texts and texts with a match are searched; the others are recognised by keyed
    hashes, which contain none of their words.

    In an answer the content is redacted. A word that may become an e-mail address is held back until it
    ends; without the kind ``email``, hardly any word is delayed.
    """

    keeps_system: ClassVar[bool] = False
    keeps_words: ClassVar[bool] = False

    kinds: tuple[Kind, ...] = get_args(Kind)
    """The kinds of data to look for."""

    patterns: Mapping[str, OwnPattern] = Field(default_factory=dict)
    """Further kinds by name, as patterns of RE2, such as ``{order: "ORD-[0-9]+"}``."""

    max_length: Annotated[Whole, Field(ge=1, le=1024)] = 64
    """The most characters that a match of ``patterns`` may have; a streamed answer is delayed by as many."""

    template: Annotated[str, template_with("kind")] = "[{kind}]"
    """The mark that replaces the data; ``{kind}`` is filled in."""

    roles: tuple[Role, ...] = Field(default=("user", "assistant", "tool"), min_length=1)
    """Roles whose messages are redacted; ``tool`` includes its older name ``function``."""

    arguments: bool = True
    """Whether text values in the arguments of tool calls are redacted; names and numbers stay."""

    examples: ClassVar[tuple[Example, ...]] = (
        Example(
            "Personal data of a caller",
            {},
            before=[
                {"role": "system", "content": "Our number is +49 30 1234567."},
                {"role": "user", "content": "Mail ann@example.org or call 0170 1234567 on 20.11.2026."},
                {"role": "user", "content": "My card is 4111 1111 1111 1111, my order 1234567890."},
            ],
            after=[
                {"role": "system", "content": "Our number is +49 30 1234567."},
                {"role": "user", "content": "Mail [email] or call [phone] on 20.11.2026."},
                {"role": "user", "content": "My card is [card], my order 1234567890."},
            ],
        ),
        Example(
            "Arguments and results of tools, and a pattern of your own",
            {"kinds": ["email"], "patterns": {"order": "ORD-[0-9]+"}, "template": "<{kind}>"},
            before=[
                {
                    "role": "assistant",
                    "tool_calls": [
                        {
                            "id": "call_1",
                            "type": "function",
                            "function": {"name": "find", "arguments": '{"mail": "ann@example.org", "n": 1}'},
                        }
                    ],
                },
                {"role": "tool", "tool_call_id": "call_1", "content": "ORD-4711, from 192.0.2.1"},
            ],
            after=[
                {
                    "role": "assistant",
                    "tool_calls": [
                        {
                            "id": "call_1",
                            "type": "function",
                            "function": {"name": "find", "arguments": '{"mail": "<email>", "n": 1}'},
                        }
                    ],
                },
                {"role": "tool", "tool_call_id": "call_1", "content": "<order>, from 192.0.2.1"},
            ],
        ),
    )

    spoken: ClassVar[tuple[Spoken, ...]] = (
        Spoken(
            "What the model must not say aloud",
            {},
            before=["I have sent it to ann@exam", "ple.org and to +49 170", " 1234567."],
            after="I have sent it to [email] and to [phone].",
        ),
        Spoken(
            "Without e-mail addresses, words are not delayed",
            {"kinds": ["card"], "template": "a card"},
            before=["Paid with 4111 1111", " 1111 1111, thank you."],
            after="Paid with a card, thank you.",
        ),
    )

    @model_validator(mode="after")
    def _does_something(self) -> Self:
        if not (self.kinds or self.patterns):
            raise ValueError("say what to redact: 'kinds', 'patterns' or both")
        reserved = [name for name in self.patterns if name in get_args(Kind)]
        if reserved:
            raise ValueError(f"'{reserved[0]}' is a kind of its own; give the pattern another name")
        self.sensitive  # noqa: B018 - compiles the patterns now rather than in the first call
        return self

    @cached_property
    def sensitive(self) -> Sensitive:
        """The search for the configured kinds and patterns."""
        return Sensitive(self.kinds, self.patterns, self.max_length)

    @cached_property
    def marks(self) -> Mapping[str, str]:
        """The mark that replaces a match, by its kind."""
        return {kind: self.template.format(kind=kind) for kind in (*self.kinds, *self.patterns)}

    @cached_property
    def _all_roles(self) -> frozenset[str]:
        return frozenset((*self.roles, "function") if "tool" in self.roles else self.roles)

    def apply(self, messages: Messages, context: Context) -> Messages:
        """Returns the messages with marks in place of personal data."""
        # Summaries and facts repeat the user's words, in messages of any role.
        roles, injected = self._all_roles, "user" in self.roles
        redacted = [
            self._message(m) if m.role in roles or (injected and isinstance(m, Injected)) else m
            for m in messages
        ]
        same = all(new is old for new, old in zip(redacted, messages, strict=True))
        return messages if same else redacted

    def open(self, context: Context) -> Stage | None:
        """Returns a stage for one choice; ``None`` if the assistant's words are not redacted."""
        return TextStage(StreamRedaction(self.sensitive, self.marks)) if "assistant" in self.roles else None

    @cached_property
    def text(self) -> Callable[[str], str]:
        """A function that replaces personal data in a text; it returns the same object if there is none."""
        return Replacer(lambda text: self.sensitive.marked(text, self.marks))

    def _message(self, message: Message) -> Message:
        changed: dict[str, Any] = {}
        if content := message.content:
            marked = self.text(content) if isinstance(content, str) else _changed(content, self._part)
            if marked is not content:
                changed["content"] = marked
        calls = message.tool_calls if self.arguments else None
        if calls and (redacted := _changed(calls, self._call)) is not calls:
            changed["tool_calls"] = redacted
        if isinstance(message.metadata, dict):
            metadata = _with(message.metadata, "original", str, self.text)
            if metadata is not message.metadata:
                changed["metadata"] = metadata
        if message.others:
            # Chat Completions has these texts in separate fields, and some platforms beside the role.
            others = _with(_with(message.others, "refusal", str, self.text), "original", str, self.text)
            if self.arguments:
                others = _with(others, "function_call", dict, self._function)
            if others is not message.others:
                changed["others"] = others
        return msgspec.structs.replace(message, **changed) if changed else message

    def _part(self, part: dict[str, Any]) -> dict[str, Any]:
        return _with(_with(part, "text", str, self.text), "refusal", str, self.text)

    def _call(self, call: dict[str, Any]) -> dict[str, Any]:
        call = _with(call, "function", dict, self._function)
        return _with(call, "custom", dict, lambda tool: _with(tool, "input", str, self.text))

    def _function(self, function: dict[str, Any]) -> dict[str, Any]:
        return _with(function, "arguments", str, lambda text: _STRING.sub(self._string, text))

    def _string(self, string: re.Match[str]) -> str:
        """Returns a JSON string with marks; unchanged if it cannot be decoded, as a name with its colon."""
        written = string.group()
        try:
            value = json.loads(written, strict=False)
        except ValueError:
            return written
        marked = self.text(value)
        return written if marked is value else json.dumps(marked)


def _with(fields: dict[str, Any], name: str, kind: type[V], change: Callable[[V], V]) -> dict[str, Any]:
    """Returns the fields with the named one changed, if it has this type; the same object if it stays."""
    value = fields.get(name)
    if not isinstance(value, kind) or (new := change(value)) == value:
        return fields
    return {**fields, name: new}


def _changed(
    parts: list[dict[str, Any]], change: Callable[[dict[str, Any]], dict[str, Any]]
) -> list[dict[str, Any]]:
    """Returns the parts, each changed; the same list if none changes."""
    changed = [change(part) for part in parts]
    same = all(new is old for new, old in zip(changed, parts, strict=True))
    return parts if same else changed
