"""Tokens, as the upstream counted them."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.observe.observation import Usage, usage_of
from tests.peers.fake_upstream import DONE, USAGE, completion, stream_of


def test_a_stream_s_last_event_tells() -> None:
    assert usage_of(stream_of("Hello")[: -len(USAGE + DONE)] + USAGE + DONE) == Usage(5, 2)
    assert usage_of(stream_of("Hello")) == Usage(5, 2)


def test_a_whole_answer_tells() -> None:
    assert usage_of(json.dumps(completion("x" * 10_000)).encode()) == Usage(5, 2)


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b'data: {"usage":null}\n\n',
        b'data: {"usage":{"prompt_tokens":"many","completion_tokens":-1}}',
        b'data: {"usage":{"prompt_tokens":1',
        b'data: {"usage":[1]}',
        b'data: {"usage":' + b"[" * 4000,
        b'{"usage":{"prompt_tokens":true,"completion_tokens":' + b"9" * 400 + b"}}",
    ],
)
def test_what_tells_nothing_is_no_number(sent: bytes) -> None:
    assert usage_of(sent) == Usage()


def test_words_are_no_usage() -> None:
    said = json.dumps({"content": '"usage":{"prompt_tokens":9,"completion_tokens":9}'}).encode()
    assert usage_of(said) == Usage()


@given(st.binary())
def test_no_bytes_make_it_fail(sent: bytes) -> None:
    assert isinstance(usage_of(sent), Usage)
