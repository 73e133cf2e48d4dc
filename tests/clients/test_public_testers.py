"""Two public testers: ``llm-comply`` as the client, ``llmock`` as a model that fails and judges who asks.

They are looked for in TESTERS_BIN, the folder of a virtual environment's programs, and on PATH.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.peers.fake_upstream import FakeUpstream, Received, Step, by_default, calling
from tests.peers.redis_server import free_port
from tests.serving_process import ServingProcess, until

pytestmark = pytest.mark.clients
CONFIG = """
listen: {port: "${PORT}"}
memory: {sessions: "sqlite:${MEMORY}"}
upstreams:
  main: {base_url: "${UPSTREAM_BASE_URL}", first_token: 2s, total: 5s, retries: 2, accepts: openai}
pipelines: {default: {upstreams: [main], request: [repair_history, restore_history]}}
"""
FAULTS = ("disconnect", "truncate", "stall", "malformed")
# Of a stream that is passed on it is the client who must notice; what was said cannot be taken back.
NOT_OURS = {"truncated_stream_accepted", "malformed_chunk_ignored"}

BROKEN_OFF = ("gave_up", "Gave up after a dropped connection without a single retry.")


def program(name: str) -> str:
    found = shutil.which(name, path=os.pathsep.join([os.environ.get("TESTERS_BIN", ""), os.environ["PATH"]]))
    if found is None:
        pytest.skip(
            f"no {name}: install it into a virtual environment and name its bin folder in TESTERS_BIN"
        )
    return found


@contextmanager
def llmock(*options: str) -> Iterator[str]:
    """Returns the root of a model that fails on request."""
    port = free_port()
    command = [program("llmock"), "serve", "--port", str(port), "--log-level", "error", *options]
    root = f"http://127.0.0.1:{port}"
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            assert until(lambda: _answers(root))
            yield root
        finally:
            process.terminate()


def _answers(root: str) -> bool:
    try:
        return httpx2.get(f"{root}/_llmock/scenario").status_code == 200
    except httpx2.TransportError:
        return False


@pytest.fixture
def before(tmp_path: Path) -> Iterator[Callable[[str], ServingProcess]]:
    """Puts a proxy before a model."""
    started: list[ServingProcess] = []

    def put(url: str) -> ServingProcess:
        environ = {"UPSTREAM_BASE_URL": url, "MEMORY": str(tmp_path / "memory.db")}
        started.append(ServingProcess(tmp_path, CONFIG, **environ).__enter__())
        return started[-1]

    yield put
    for each in started:
        each.__exit__()


def found_by_comply(root: str) -> dict[str, Any]:
    """What llm-comply says of each of its cases."""
    command = [program("llm-comply"), "--format", "openai-chat", "--base-url", f"{root}/v1", "--json"]
    said = subprocess.run(
        [*command, "-k", "sk-x", "-m", "gpt-4o"], capture_output=True, text=True, check=False
    )
    return {case["id"]: case["status"] for case in json.loads(said.stdout)["results"]}


def calling_tools(asked: Received) -> Iterable[Step]:
    """A model that calls the first tool it is offered, without being told to."""
    tools = asked.json.get("tools") if asked.method == "POST" else None
    if tools:
        return calling(tools[0]["function"]["name"], stream=asked.json.get("stream") is True)
    return by_default(asked)


def test_before_a_model_that_complies_it_complies(
    before: Callable[[str], ServingProcess], upstream: FakeUpstream
) -> None:
    upstream.script = calling_tools
    found = found_by_comply(before(upstream.url).root)
    assert len(found) >= 9
    assert {case: status for case, status in found.items() if status != "passed"} == {
        "chat-reasoning-summary": "skipped"  # it wants a model of OpenAI's by its name
    }


def test_the_practice_model_complies(before: Callable[[str], ServingProcess]) -> None:
    found = found_by_comply(before("practice:").root)
    assert {case for case, status in found.items() if status == "failed"} == set()


def test_it_complies_no_less_than_the_model_behind_it(before: Callable[[str], ServingProcess]) -> None:
    with llmock() as root:
        assert found_by_comply(before(f"{root}/v1").root) == found_by_comply(root)


def test_before_a_model_that_fails_it_behaves(before: Callable[[str], ServingProcess]) -> None:
    errors = [f"--error-rate={status}=0.1" for status in (429, 500, 503, 400)]
    faults = [f"--stream-fault={kind}=0.08" for kind in FAULTS]
    with llmock(*errors, *faults, "--stream-stall-seconds=30") as root:
        serving = before(f"{root}/v1")

        def call(number: int) -> httpx2.Response:
            return serving.chat(f"Question {number}", f"s{number}", stream=number % 3 > 0)

        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(call, range(150)))
        report = [program("llmock"), "report", "--url", root, "--json"]
        verdict = json.loads(subprocess.run(report, capture_output=True, text=True, check=False).stdout)
    assert verdict["faults_injected"] > 30
    found = {(each["code"], each["title"]) for each in verdict["findings"]}
    assert {each for each in found if each[0] not in NOT_OURS and each != BROKEN_OFF} == set()
    assert {each.status_code for each in answers} <= {200, 400, 429, 500, 502, 503, 504}
    for each in answers:
        kind = each.headers["content-type"]
        assert kind.startswith("text/event-stream") or each.json().keys() & {"error", "choices"}
