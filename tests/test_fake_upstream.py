import gc
import warnings

import pytest

from tests.fake_upstream import HANG, FakeUpstream, Step, answer
from tests.raw_client import RawClient, request
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
