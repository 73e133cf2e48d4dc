"""Where an event ends, in any framing, cut anywhere."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.answer.sse import Framing, data_of, decode_json, events
from proxy.errors import UpstreamBroken

ENDS = [b"\n\n", b"\r\n\r\n", b"\r\r", b"\n\r\n", b"\r\n\n", b"\n\r"]


@pytest.mark.parametrize("end", ENDS)
def test_any_blank_line_ends_an_event(end: bytes) -> None:
    assert Framing().feed(b"data: a" + end + b"data: b") == b"data: a" + end


@pytest.mark.parametrize("line", [b"data: a\n", b"data: a\r\n", b"data: a\r\ndata: b\r\n"])
def test_a_line_end_alone_ends_none(line: bytes) -> None:
    assert Framing().feed(line) == b""


@given(pieces=st.lists(st.text("ab\n\r:").map(str.encode)))
def test_nothing_is_lost_or_changed(pieces: list[bytes]) -> None:
    framing = Framing()
    passed = [framing.feed(piece) for piece in pieces]
    assert b"".join([*passed, framing.close()]) == b"".join(pieces)


@given(pieces=st.lists(st.text("ab\n").map(str.encode)))
def test_only_whole_events_pass(pieces: list[bytes]) -> None:
    framing = Framing()
    for piece in pieces:
        passed = framing.feed(piece)
        assert passed == b"" or passed.endswith(b"\n\n")


def test_an_event_may_come_byte_by_byte() -> None:
    framing = Framing()
    stream = b"data: a\r\n\r\ndata: b\n\n"
    passed = b"".join(framing.feed(bytes([byte])) for byte in stream)
    assert passed + framing.close() == stream


def test_an_endless_event_is_refused() -> None:
    framing = Framing()
    with pytest.raises(UpstreamBroken):
        for _ in range(20):
            framing.feed(b"x" * 1_000_000)


def test_an_event_gives_its_data() -> None:
    assert data_of(b"data: a\ndata:b\nid: 1\n\n") == b"a\nb"
    assert data_of(b": comment\n\n") == b""
    assert list(events(b"data: a\n\ndata: b\r\n\r\n")) == [b"data: a\n\n", b"data: b\r\n\r\n"]


@given(
    lines=st.lists(st.sampled_from([b"data: a", b"data:b", b"data: ", b"id: 1", b": c", b""])), data=st.data()
)
def test_data_is_read_the_same_however_lines_end(lines: list[bytes], data: st.DataObject) -> None:
    ends = [data.draw(st.sampled_from([b"\n", b"\r\n", b"\n\n", b"\r"])) for _ in lines]
    event = b"".join(line + end for line, end in zip(lines, ends, strict=True))
    said = [line[5:].removeprefix(b" ") for line in lines if line.startswith(b"data:")]
    assert data_of(event) == b"\n".join(said)


def test_json_is_read_leniently() -> None:
    """As some servers write it: with line breaks and tabs as they are, half characters, and broken UTF-8."""
    assert decode_json(b'\xef\xbb\xbf{"a": "one\ttwo\n\\ud83c \xff"}') == {"a": "one\ttwo\n\ud83c \ufffd"}
