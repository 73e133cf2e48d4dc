"""Server-sent events: where each ends (HTML standard, 9.2), and the JSON in their data."""

import json
import re
from collections.abc import Iterator
from typing import Any, TypeVar

import msgspec

from proxy.errors import UpstreamBroken

T = TypeVar("T")

# One or more blank lines end an event. Lines end in LF, CR LF or CR, in any mixture.
_BLANK_LINE = re.compile(rb"(?:\r\n|\n|\r(?!\n))[\r\n]+")
_LINE_FEEDS = re.compile(rb"\n*")
_LINE_END = re.compile(rb"\r\n|\n|\r")
BOM = b"\xef\xbb\xbf"
_LONGEST_EVENT = 16_000_000
_JSON_TOKEN = re.compile(r'"(?:[^"\\]++|\\u[0-9a-fA-F]{4}|\\[^u])*+("?)|[\[\]{},]', re.DOTALL)
_CLOSING = {"[": "]", "{": "}"}
DONE = b"[DONE]"
"""The data of the event that ends a stream of completions."""


class Framing(msgspec.Struct, eq=False):
    """Cuts a stream after its last whole event, so that other events can be inserted there.

    ``rest`` are the bytes after that event.
    """

    rest: bytearray = msgspec.field(default_factory=bytearray)

    def feed(self, data: bytes) -> bytes:
        """Returns the events that are whole with these bytes; keeps the bytes after them.

        Raises UpstreamBroken where one event is longer than 16 MB.
        """
        if not self.rest and data.endswith(b"\n\n"):
            return data
        seen = max(0, len(self.rest) - 3)
        self.rest += data
        if b"\r" in self.rest[seen:]:
            end = max((blank.end() for blank in _BLANK_LINE.finditer(self.rest, seen)), default=0)
        else:
            end = self.rest.rfind(b"\n\n", seen) + 2 if b"\n\n" in self.rest[seen:] else 0
        whole = bytes(self.rest[:end])
        del self.rest[:end]
        if len(self.rest) > _LONGEST_EVENT:
            raise UpstreamBroken("The upstream sent an event of more than 16 MB.")
        return whole

    def close(self) -> bytes:
        """Returns the bytes after the last whole event, and drops them."""
        rest = bytes(self.rest)
        self.rest.clear()
        return rest


def events(whole: bytes) -> Iterator[bytes]:
    """The events in a run of bytes, each with the blank lines that end it; the last one may lack them."""
    start = 0
    if b"\r" in whole:
        for blank in _BLANK_LINE.finditer(whole):
            yield whole[start : blank.end()]
            start = blank.end()
    else:  # a regular expression would take a quarter of a second for an event of 10 MB
        while (blank_line := whole.find(b"\n\n", start)) >= 0:
            rest = _LINE_FEEDS.match(whole, blank_line)
            end = rest.end() if rest else blank_line + 2
            yield whole[start:end]
            start = end
    if start < len(whole):
        yield whole[start:]


def data_of(event: bytes) -> bytes:
    """The values of an event's ``data`` lines, joined by line feeds; empty for a comment."""
    event = event.rstrip(b"\r\n")  # there may be millions of blank lines
    if event.startswith(b"data: ") and b"\n" not in event and b"\r" not in event:
        return event[6:]  # the usual form: one line
    values = [line[5:] for line in _lines(event) if line.startswith(b"data:")]
    return b"\n".join(value.removeprefix(b" ") for value in values)


def is_done(whole: bytes) -> bool:
    """Whether one of the events in a run of bytes ends the stream."""
    # A search backwards is twice as fast, and mostly finds nothing.
    if whole.rfind(DONE) < 0:
        return False
    blank = whole.rfind(b"\n\n", 0, whole.find(DONE))
    last = whole[blank + 2 :] if blank >= 0 else whole
    return DONE in [data_of(event).strip() for event in events(last)]


def lines_without_data(event: bytes) -> bytes:
    """An event's other lines (its name, its id, comments), each with a line break."""
    lines = (line for line in _lines(event.rstrip(b"\r\n")) if line and not line.startswith(b"data:"))
    return b"".join(line + b"\n" for line in lines)


def _lines(event: bytes) -> list[bytes]:
    """An event's lines, without the byte-order mark that may stand before a stream's first."""
    return _LINE_END.split(event.removeprefix(BOM))


class MalformedJson(ValueError):
    """Bytes that even a lenient decoder cannot read as JSON."""


def decode_json(data: bytes) -> Any:
    """Decodes JSON leniently: half characters, ``NaN`` and broken UTF-8 are accepted.

    Raises MalformedJson.
    """
    try:
        return msgspec.json.decode(data)
    except RecursionError:
        raise MalformedJson from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    try:
        return json.loads(data.decode("utf-8-sig", "replace"), strict=False)
    except (ValueError, RecursionError):
        raise MalformedJson from None


def decode_raw(value: object) -> object:
    """A raw field decoded, any other value as it is; ``None`` for what cannot be decoded."""
    if not isinstance(value, msgspec.Raw):
        return value
    try:
        return msgspec.json.decode(value)
    except (msgspec.DecodeError, ValueError, RecursionError):  # a number beyond all floats, for one
        return None


def decode_cut_json(data: bytes) -> Any:
    """Decodes as much as there is of a JSON text that was cut off; raises MalformedJson.

    A string at the cut is shortened; any other incomplete value is left out.
    """
    text = data.decode("utf-8", "ignore")
    closing: list[str] = []
    is_open, end = False, len(text)
    whole_end, whole_closing = 0, tuple[str, ...]()
    for token in _JSON_TOKEN.finditer(text):
        mark = token[0]
        if mark in _CLOSING:
            closing.append(_CLOSING[mark])
        elif mark == ",":
            whole_end, whole_closing = token.start(), tuple(closing)
        elif mark in ("]", "}"):
            del closing[-1:]
        elif not token[1]:
            is_open, end = True, token.end()
    try:
        return decode_json((text[:end] + '"' * is_open + "".join(closing[::-1])).encode())
    except MalformedJson:
        return decode_json((text[:whole_end] + "".join(whole_closing[::-1])).encode())


def whole_characters(value: T) -> T:
    """A JSON value with whole characters: two adjacent halves are joined, and a single half is removed."""
    try:
        msgspec.json.encode(value)
    except UnicodeEncodeError:
        halves = json.dumps(value, ensure_ascii=False).encode("utf-16", "surrogatepass")
        whole: T = json.loads(halves.decode("utf-16", "ignore"))
        return whole
    return value


def encode_json(value: Any) -> bytes:
    """Encodes a value as JSON; half characters and huge numbers are written as they were read."""
    try:
        return msgspec.json.encode(value)
    except (UnicodeEncodeError, OverflowError):
        return json.dumps(value, separators=(",", ":")).encode()
