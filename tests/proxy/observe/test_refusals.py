"""Refused requests leave at most one line a minute in the log."""

import asyncio

import pytest

from proxy.observe.log import MinuteLog
from tests.hurried_loop import HurriedLoop


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    told = [str(record.msg) for record in caplog.records]
    caplog.clear()
    return told


def test_the_first_is_told_at_once_and_those_of_a_minute_together(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        refusals = MinuteLog("requests refused", "code")
        for _ in range(100):
            refusals.add("invalid_api_key")
        refusals.add("invalid_signature")
        assert lines(caplog) == ["requests refused code=invalid_api_key count=1"]
        await asyncio.sleep(61)
        assert lines(caplog) == [
            "requests refused code=invalid_api_key count=99",
            "requests refused code=invalid_signature count=1",
        ]
        await asyncio.sleep(300)
        assert lines(caplog) == []
        refusals.add("invalid_api_key")
        assert lines(caplog) == ["requests refused code=invalid_api_key count=1"]
        refusals.add("invalid_api_key")
        refusals.flush()
        assert lines(caplog) == ["requests refused code=invalid_api_key count=1"]

    with asyncio.Runner(loop_factory=HurriedLoop) as runner:
        runner.run(run())
