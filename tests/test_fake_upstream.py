import gc
import socket
import warnings
from contextlib import ExitStack

import pytest

from tests.peers.fake_upstream import HANG, FakeUpstream, Step, answer
from tests.peers.raw_client import RawClient, request
from tests.waiting import awaited


@pytest.mark.parametrize("steps", [[HANG], answer({}), [30.0]], ids=["hangs", "answered", "slow"])
def test_a_server_that_ends_leaves_no_connection_behind(steps: list[Step]) -> None:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with FakeUpstream() as server:
            server.says(*steps)
            client = RawClient(server.port)
            client.send(request())
            awaited(lambda: server.requests)
        with client:
            gc.collect()
    assert [str(one.message) for one in told] == []


def test_whoever_comes_as_it_ends_is_let_go_of(recwarn: pytest.WarningsRecorder) -> None:
    for many in range(1, 21):
        with ExitStack() as callers, FakeUpstream() as ending:
            for _ in range(many % 6 + 1):
                caller = callers.enter_context(socket.socket())
                caller.setblocking(False)  # noqa: FBT003
                caller.connect_ex(("127.0.0.1", ending.port))
        gc.collect()
    assert not [one for one in recwarn if one.category is ResourceWarning]
